#include "transport/topology_detect.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "base/log.h"
#include "transport/cuda_device.h"
#include "transport/topology_cpu.h"

namespace fccl {
namespace {

// The share of a data sheet's rate that kernels of this library get: measured on 2x H200, 364 of 450 GB/s each way and
// 3760 of 4800 GB/s (docs/performance.md). Assumed on other GPUs.
constexpr double kLinkShare = 0.81;
constexpr double kMemoryShare = 0.78;
constexpr double kPcieShare = 0.8;  // not measured

constexpr unsigned kMostLinks = 18;

// Of one NVLink, one way, from the data sheets.
double nvlinkGigabytes(int sm) { return sm >= 100 ? 50 : 25; }

double pcieLaneGigabytes(unsigned generation) {
  constexpr std::array kRates = {0.0, 0.25, 0.5, 0.985, 1.97, 3.94, 7.56};
  return generation < kRates.size() ? kRates[generation] : kRates.back();
}

// What is known of a GPU only while its links are looked at.
struct Seen {
  NvmlDevice device = nullptr;
  std::string nvmlBusId;
  int lanesToSwitch = 0;
  std::vector<int> lanesTo;  // other GPUs, directly
  double pcieGigabytes = 0;
};

class Notes {
 public:
  explicit Notes(std::vector<std::string>* notes) : notes_(notes) {}
  void add(std::string note) {
    if (std::ranges::find(*notes_, note) == notes_->end()) notes_->push_back(std::move(note));
  }
  // Whether the function is there and has an answer.
  template <class... Parameters, class... Args>
  bool ask(const char* name, const char* consequence, int (*function)(Parameters...), Args... args) {
    if (function == nullptr) {
      add(fmt::format("NVML has no {}: {}.", name, consequence));
      return false;
    }
    const int code = function(args...);
    if (code != kNvmlSuccess) add(fmt::format("{} gave error {}: {}.", name, code, consequence));
    return code == kNvmlSuccess;
  }

 private:
  std::vector<std::string>* notes_;
};

// "00000000:18:00.0" of NVML as "0000:18:00.0" of Linux.
std::string linuxBusId(const NvmlPciInfo& info) {
  return fmt::format("{:04x}:{:02x}:{:02x}.0", info.domain, info.bus, info.device);
}

int numaNodeOf(const std::string& sysfs, const std::string& busId) {
  std::ifstream file(sysfs + "/bus/pci/devices/" + busId + "/numa_node");
  int node = -1;
  return file >> node ? std::max(-1, node) : -1;
}

void lookAtFabric(const Nvml& nvml, NvmlDevice device, Notes& notes, TopologyGpu* gpu) {
  NvmlFabricInfo info{};
  // GPUs that have no fabric say that it is not supported, which is no news.
  if (nvml.fabricInfo == nullptr) {
    notes.add("NVML has no nvmlDeviceGetGpuFabricInfo: GPUs are taken to be in no multi-node NVLink fabric.");
    return;
  }
  if (nvml.fabricInfo(device, &info) != kNvmlSuccess || info.state != kNvmlFabricCompleted ||
      info.status != kNvmlSuccess) {
    return;
  }
  std::string cluster;
  bool any = false;
  for (const unsigned char byte : info.clusterUuid) {
    cluster += fmt::format("{:02x}", byte);
    any = any || byte != 0;
  }
  if (!any) return;
  gpu->fabricCluster = cluster;
  gpu->fabricClique = info.cliqueId;
}

void lookAtGpu(const Nvml& nvml, const std::string& sysfs, Notes& notes, Seen* seen, TopologyGpu* gpu) {
  const NvmlDevice device = seen->device;
  std::array<char, 96> text{};
  constexpr auto kBytes = static_cast<unsigned>(sizeof(text) - 1);
  if (notes.ask("nvmlDeviceGetUUID", "GPUs cannot be told apart by uuid", nvml.uuid, device, text.data(), kBytes)) {
    gpu->uuid = text.data();
  }
  text = {};
  if (notes.ask("nvmlDeviceGetName", "GPUs have no names", nvml.name, device, text.data(), kBytes)) {
    gpu->name = text.data();
  }
  NvmlPciInfo pci{};
  if (notes.ask("nvmlDeviceGetPciInfo_v3", "NUMA nodes and direct NVLinks are not known", nvml.pciInfo, device, &pci)) {
    gpu->busId = linuxBusId(pci);
    gpu->numaNode = numaNodeOf(sysfs, gpu->busId);
    seen->nvmlBusId = pci.busId;
  }
  int major = 0;
  int minor = 0;
  if (notes.ask("nvmlDeviceGetCudaComputeCapability", "the compute capability is not known", nvml.computeCapability,
                device, &major, &minor)) {
    gpu->sm = major * 10 + minor;
  }
  unsigned bits = 0;
  unsigned megahertz = 0;
  if (notes.ask("nvmlDeviceGetMemoryBusWidth", "the memory's rate is not known", nvml.memoryBusWidth, device, &bits) &&
      notes.ask("nvmlDeviceGetMaxClockInfo", "the memory's rate is not known", nvml.maxClock, device, kNvmlMemoryClock,
                &megahertz)) {
    // Two transfers per clock.
    gpu->memoryGigabytesPerSecond = bits / 8.0 * megahertz * 2e-3 * kMemoryShare;
  }
  unsigned generation = 0;
  unsigned lanes = 0;
  if (notes.ask("nvmlDeviceGetMaxPcieLinkGeneration", "PCIe's rate is not known", nvml.pcieGeneration, device,
                &generation) &&
      notes.ask("nvmlDeviceGetMaxPcieLinkWidth", "PCIe's rate is not known", nvml.pcieWidth, device, &lanes)) {
    seen->pcieGigabytes = pcieLaneGigabytes(generation) * lanes * kPcieShare;
  }
  lookAtFabric(nvml, device, notes, gpu);
}

// A link whose other end is no GPU of this node ends in a switch.
void lookAtLinks(const Nvml& nvml, std::vector<Seen>& all, size_t self, Notes& notes) {
  Seen& gpu = all[self];
  gpu.lanesTo.assign(all.size(), 0);
  if (nvml.linkState == nullptr) {
    notes.add("NVML has no nvmlDeviceGetNvLinkState: GPUs are taken to have no NVLink.");
    return;
  }
  for (unsigned link = 0; link < kMostLinks; link++) {
    int enabled = 0;
    if (nvml.linkState(gpu.device, link, &enabled) != kNvmlSuccess || enabled != kNvmlLinkEnabled) continue;
    int type = -1;
    if (nvml.linkRemoteType != nullptr && nvml.linkRemoteType(gpu.device, link, &type) == kNvmlSuccess &&
        type == kNvmlLinkToSwitch) {
      gpu.lanesToSwitch++;
      continue;
    }
    NvmlPciInfo remote{};
    if (!notes.ask("nvmlDeviceGetNvLinkRemotePciInfo_v2", "NVLinks that do not say where they end are left out",
                   nvml.linkRemotePci, gpu.device, link, &remote)) {
      continue;
    }
    const std::string end = remote.busId;
    const auto peer = std::ranges::find(all, end, &Seen::nvmlBusId);
    if (peer == all.end() || end.empty()) {
      gpu.lanesToSwitch++;
    } else {
      gpu.lanesTo[static_cast<size_t>(peer - all.begin())]++;
    }
  }
}

bool peersAllowed(const Nvml& nvml, NvmlDevice a, NvmlDevice b, bool nvlink, Notes& notes) {
  if (nvml.p2pStatus == nullptr) {
    notes.add("NVML has no nvmlDeviceGetP2PStatus: peer access is assumed over NVLink, and not over PCIe.");
    return nvlink;
  }
  for (const int capability : {kNvmlP2pRead, kNvmlP2pWrite}) {
    int status = -1;
    if (nvml.p2pStatus(a, b, capability, &status) != kNvmlSuccess || status != kNvmlP2pOk) return false;
  }
  return true;
}

LinkFacts linkOf(const Nvml& nvml, const Seen& a, const Seen& b, size_t indexOfB, int sm, Notes& notes) {
  LinkFacts facts;
  const int direct = a.lanesTo[indexOfB];
  const int switched = std::min(a.lanesToSwitch, b.lanesToSwitch);
  if (direct > 0 || switched > 0) {
    facts.kind = direct > 0 ? LinkKind::kNvlink : LinkKind::kNvswitch;
    facts.lanes = direct > 0 ? direct : switched;
    facts.gigabytesPerSecond = facts.lanes * nvlinkGigabytes(sm) * kLinkShare;
  } else {
    int ancestor = kNvmlAncestorSystem;
    if (!notes.ask("nvmlDeviceGetTopologyCommonAncestor", "GPUs without NVLink are taken to be on different sockets",
                   nvml.commonAncestor, a.device, b.device, &ancestor)) {
      ancestor = kNvmlAncestorSystem;
    }
    facts.kind = ancestor < kNvmlAncestorSystem ? LinkKind::kPcie : LinkKind::kSystem;
    facts.gigabytesPerSecond = std::min(a.pcieGigabytes, b.pcieGigabytes);
  }
  facts.peerAccess = peersAllowed(nvml, a.device, b.device, isNvlink(facts.kind), notes);
  return facts;
}

// NVML is counted: whoever starts it ends it.
class Session {
 public:
  explicit Session(const Nvml& nvml) : nvml_(nvml), code_(nvml.init()) {}
  ~Session() {
    if (code_ == kNvmlSuccess && nvml_.shutdown != nullptr) nvml_.shutdown();
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  int code() const { return code_; }

 private:
  const Nvml& nvml_;
  int code_;
};

std::string hostName() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

DriverQueries loadDriver(std::string* missing) {
  DriverQueries driver;
  // Kept for the life of the process, as CUDA itself keeps it.
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    *missing = "libcuda.so.1 is not on this machine";
    return driver;
  }
  const auto find = [&](const char* name, auto* target) {
    *target = reinterpret_cast<std::remove_pointer_t<decltype(target)>>(::dlsym(library, name));
  };
  find("cuInit", &driver.init);
  find("cuDeviceGetCount", &driver.count);
  find("cuDeviceGet", &driver.byIndex);
  find("cuDeviceGetUuid", &driver.uuid);
  find("cuDeviceGetAttribute", &driver.attribute);
  return driver;
}

}  // namespace

const DriverQueries& DriverQueries::loaded(std::string* missing) {
  static std::string why;
  static const DriverQueries driver = loadDriver(&why);
  *missing = why;
  return driver;
}

void detectGpus(const Nvml& nvml, const std::string& sysfs, TopologyNode* node, std::vector<std::string>* list) {
  Notes notes(list);
  if (nvml.init == nullptr || nvml.count == nullptr || nvml.byIndex == nullptr) {
    notes.add(
        "NVML lacks nvmlInit_v2, nvmlDeviceGetCount_v2 or nvmlDeviceGetHandleByIndex_v2: GPUs cannot be looked at.");
    return;
  }
  const Session session(nvml);
  if (session.code() != kNvmlSuccess) {
    notes.add(fmt::format("nvmlInit_v2 gave error {}: GPUs cannot be looked at.", session.code()));
    return;
  }
  unsigned count = 0;
  if (!notes.ask("nvmlDeviceGetCount_v2", "GPUs cannot be looked at", nvml.count, &count)) return;
  std::vector<Seen> seen;
  for (unsigned i = 0; i < count; i++) {
    Seen one;
    // A GPU that this process may not use has no handle.
    if (nvml.byIndex(i, &one.device) != kNvmlSuccess) continue;
    TopologyGpu gpu;
    lookAtGpu(nvml, sysfs, notes, &one, &gpu);
    seen.push_back(std::move(one));
    node->gpus.push_back(std::move(gpu));
  }
  for (size_t i = 0; i < seen.size(); i++) lookAtLinks(nvml, seen, i, notes);
  for (size_t second = 0; second < seen.size(); second++) {
    for (size_t first = 0; first < second; first++) {
      const int sm = std::min(node->gpus[first].sm, node->gpus[second].sm);
      node->links.push_back({static_cast<int>(first), static_cast<int>(second),
                             linkOf(nvml, seen[first], seen[second], second, sm, notes)});
    }
  }
}

void detectMulticast(const DriverQueries& driver, TopologyNode* node, std::vector<std::string>* notes) {
  if (node->gpus.empty()) return;
  if (driver.init == nullptr || driver.count == nullptr || driver.byIndex == nullptr || driver.uuid == nullptr ||
      driver.attribute == nullptr) {
    notes->emplace_back("The CUDA driver lacks a function that is asked for multicast: none is assumed.");
    return;
  }
  int count = 0;
  if (const int code = driver.init(0); code != 0 || driver.count(&count) != 0) {
    notes->push_back(fmt::format("The CUDA driver cannot be asked for multicast (error {}): none is assumed.", code));
    return;
  }
  for (int i = 0; i < count; i++) {
    int device = 0;
    int supported = 0;
    CudaUuid uuid{};
    if (driver.byIndex(&device, i) != 0 || driver.uuid(uuid.data(), device) != 0 ||
        driver.attribute(&supported, kDriverMulticastSupported, device) != 0) {
      continue;
    }
    const auto gpu = std::ranges::find(node->gpus, describeUuid(uuid), &TopologyGpu::uuid);
    if (gpu != node->gpus.end()) gpu->multicast = supported != 0;
  }
}

Topology detectTopology() {
  Topology topology;
  topology.name = "this machine";
  topology.source = "detected; rates are data sheet times the share that was measured on H200";
  topology.fabric.kind = LinkKind::kFabric;
  topology.network.kind = LinkKind::kNetwork;
  TopologyNode& node = topology.nodes.emplace_back();
  node.host = hostName();
  if (!detectCpu(&node.cpu)) topology.notes.emplace_back("hwloc cannot read this machine's layout.");
  std::string missing;
  const Nvml& nvml = Nvml::loaded(&missing);
  if (!missing.empty()) {
    topology.notes.push_back(fmt::format("{}: no GPUs are looked for.", missing));
    return topology;
  }
  detectGpus(nvml, "/sys", &node, &topology.notes);
  const DriverQueries& driver = DriverQueries::loaded(&missing);
  if (missing.empty()) {
    detectMulticast(driver, &node, &topology.notes);
  } else {
    topology.notes.push_back(fmt::format("{}: no multicast is assumed.", missing));
  }
  return topology;
}

}  // namespace fccl
