// Detection against machines that are made of functions: a DGX-like one with switches, one with PCIe, and each with any
// of NVML's functions missing or refusing.
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/support/catch.h"
#include "transport/topology_detect.h"

using namespace fccl;

namespace {

// What the functions below answer from. NVML's handles are 1 + index.
struct FakeMachine {
  int gpus = 8;
  bool switches = true;
  bool direct = false;  // GPU 0 and 1 by links of their own
  bool peers = true;
  bool fabric = false;
  int sessions = 0;
};
FakeMachine fake;

NvmlDevice handle(int index) { return reinterpret_cast<NvmlDevice>(static_cast<uintptr_t>(index) + 1); }
int indexOf(NvmlDevice device) { return static_cast<int>(reinterpret_cast<uintptr_t>(device)) - 1; }
void put(char* text, unsigned bytes, const std::string& value) { std::strncpy(text, value.c_str(), bytes); }
std::string busId(int index) { return fmt::format("00000000:{:02X}:00.0", index + 0x10); }

Nvml fakeNvml() {
  Nvml nvml;
  nvml.init = [] { return fake.sessions++, 0; };
  nvml.shutdown = [] { return fake.sessions--, 0; };
  nvml.count = [](unsigned* count) { return *count = static_cast<unsigned>(fake.gpus), 0; };
  nvml.byIndex = [](unsigned index, NvmlDevice* device) { return *device = handle(static_cast<int>(index)), 0; };
  nvml.uuid = [](NvmlDevice device, char* text, unsigned bytes) {
    put(text, bytes, fmt::format("GPU-{:02x}000000-0000-0000-0000-000000000000", indexOf(device)));
    return 0;
  };
  nvml.name = [](NvmlDevice, char* text, unsigned bytes) { return put(text, bytes, "Fake H200"), 0; };
  nvml.pciInfo = [](NvmlDevice device, NvmlPciInfo* info) {
    *info = {};
    info->bus = static_cast<unsigned>(indexOf(device) + 0x10);
    put(info->busId, sizeof(info->busId), busId(indexOf(device)));
    return 0;
  };
  nvml.computeCapability = [](NvmlDevice, int* major, int* minor) { return *major = 9, *minor = 0, 0; };
  nvml.memoryBusWidth = [](NvmlDevice, unsigned* bits) { return *bits = 6144, 0; };
  nvml.maxClock = [](NvmlDevice, int type, unsigned* clock) { return *clock = type == 2 ? 3201 : 0, 0; };
  nvml.pcieGeneration = [](NvmlDevice, unsigned* generation) { return *generation = 5, 0; };
  nvml.pcieWidth = [](NvmlDevice, unsigned* lanes) { return *lanes = 16, 0; };
  nvml.linkState = [](NvmlDevice device, unsigned link, int* enabled) {
    *enabled = fake.switches || (fake.direct && indexOf(device) < 2 && link < 4) ? 1 : 0;
    return link < 18 ? 0 : 2;
  };
  nvml.linkRemoteType = [](NvmlDevice, unsigned, int* type) { return *type = fake.switches ? 2 : 0, 0; };
  nvml.linkRemotePci = [](NvmlDevice device, unsigned, NvmlPciInfo* info) {
    *info = {};
    put(info->busId, sizeof(info->busId), fake.switches ? "00000000:C0:00.0" : busId(1 - indexOf(device)));
    return 0;
  };
  nvml.p2pStatus = [](NvmlDevice, NvmlDevice, int, int* status) { return *status = fake.peers ? 0 : 1, 0; };
  nvml.commonAncestor = [](NvmlDevice a, NvmlDevice b, int* level) {
    return *level = indexOf(a) / 4 == indexOf(b) / 4 ? 30 : 50, 0;
  };
  nvml.fabricInfo = [](NvmlDevice, NvmlFabricInfo* info) {
    *info = {};
    if (!fake.fabric) return 3;
    info->clusterUuid[0] = 0xab;
    info->cliqueId = 5;
    info->state = 3;
    return 0;
  };
  return nvml;
}

struct Detected {
  TopologyNode node;
  std::vector<std::string> notes;
};

Detected detect(const FakeMachine& machine, const Nvml& nvml, const std::string& sysfs = "/nowhere") {
  fake = machine;
  Detected result;
  detectGpus(nvml, sysfs, &result.node, &result.notes);
  CHECK(fake.sessions == 0);
  return result;
}

}  // namespace

TEST_CASE("detection: GPUs behind NVSwitches", "[topology]") {
  const Detected seen = detect({.gpus = 8}, fakeNvml());
  CHECK(seen.notes.empty());
  REQUIRE(seen.node.gpus.size() == 8);
  const TopologyGpu& gpu = seen.node.gpus[3];
  CHECK(gpu.uuid == "GPU-03000000-0000-0000-0000-000000000000");
  CHECK(gpu.name == "Fake H200");
  CHECK(gpu.busId == "0000:13:00.0");
  CHECK(gpu.sm == 90);
  CHECK(gpu.numaNode == -1);
  CHECK(gpu.memoryGigabytesPerSecond == Approx(3835).epsilon(0.01));
  CHECK(gpu.fabricCluster.empty());
  REQUIRE(seen.node.links.size() == 28);
  for (const TopologyLink& link : seen.node.links) {
    CHECK(link.facts.kind == LinkKind::kNvswitch);
    CHECK(link.facts.lanes == 18);
    CHECK(link.facts.gigabytesPerSecond == Approx(364.5));
    CHECK(link.facts.peerAccess);
  }
}

TEST_CASE("detection: NVLink between two GPUs, PCIe between the others", "[topology]") {
  const Detected seen = detect({.gpus = 8, .switches = false, .direct = true}, fakeNvml());
  Topology topology;
  topology.nodes.push_back(seen.node);
  const auto between = [&](int a, int b) { return linkBetween(topology, {0, a}, {0, b}); };
  CHECK(between(0, 1).kind == LinkKind::kNvlink);
  CHECK(between(1, 0).lanes == 4);
  CHECK(between(0, 2).kind == LinkKind::kPcie);
  CHECK(between(3, 4).kind == LinkKind::kSystem);
  CHECK(between(3, 4).gigabytesPerSecond == Approx(50.4).epsilon(0.01));
}

TEST_CASE("detection: peer access is what NVML says, not what links suggest", "[topology]") {
  const Detected seen = detect({.gpus = 2, .peers = false}, fakeNvml());
  REQUIRE(seen.node.links.size() == 1);
  CHECK(seen.node.links[0].facts.kind == LinkKind::kNvswitch);
  CHECK_FALSE(seen.node.links[0].facts.peerAccess);
}

TEST_CASE("detection: the clique of a multi-node fabric", "[topology]") {
  const Detected seen = detect({.gpus = 4, .fabric = true}, fakeNvml());
  CHECK(seen.node.gpus[2].fabricCluster == "ab000000000000000000000000000000");
  CHECK(seen.node.gpus[2].fabricClique == 5);
}

TEST_CASE("detection: NUMA nodes come from the kernel", "[topology]") {
  const auto root = std::filesystem::temp_directory_path() / fmt::format("fccl-test-sysfs-{}", ::getpid());
  std::filesystem::create_directories(root / "bus/pci/devices/0000:11:00.0");
  std::ofstream(root / "bus/pci/devices/0000:11:00.0/numa_node") << "1\n";
  const Detected seen = detect({.gpus = 2}, fakeNvml(), root.string());
  std::filesystem::remove_all(root);
  CHECK(seen.node.gpus[0].numaNode == -1);
  CHECK(seen.node.gpus[1].numaNode == 1);
}

TEST_CASE("detection: without any one function of NVML it goes on and says what is missing", "[topology]") {
  // Fields of Nvml are pointers to functions of many types, all of one size.
  constexpr size_t kFunctions = sizeof(Nvml) / sizeof(void (*)());
  for (size_t missing = 0; missing < kFunctions; missing++) {
    for (const bool switches : {true, false}) {
      INFO("function " << missing << ", switches " << switches);
      Nvml nvml = fakeNvml();
      std::memset(reinterpret_cast<char*>(&nvml) + missing * sizeof(void (*)()), 0, sizeof(void (*)()));
      fake = {.gpus = 3, .switches = switches, .direct = !switches};
      TopologyNode node;
      std::vector<std::string> notes;
      detectGpus(nvml, "/nowhere", &node, &notes);
      const bool blind = nvml.init == nullptr || nvml.count == nullptr || nvml.byIndex == nullptr;
      CHECK(node.gpus.size() == (blind ? 0 : 3));
      CHECK(node.links.size() == (blind ? 0 : 3));
      if (blind) CHECK(notes.size() == 1);
      for (const std::string& note : notes) CHECK(note.back() == '.');
    }
  }
  Nvml nvml = fakeNvml();
  nvml.p2pStatus = nullptr;
  const Detected seen = detect({.gpus = 2}, nvml);
  REQUIRE(seen.notes.size() == 1);
  CHECK(seen.notes[0].find("nvmlDeviceGetP2PStatus") != std::string::npos);
  CHECK(seen.node.links[0].facts.peerAccess);
}

TEST_CASE("detection: a function of NVML that refuses costs only what it would have told", "[topology]") {
  Nvml nvml = fakeNvml();
  nvml.uuid = [](NvmlDevice, char*, unsigned) { return 999; };
  nvml.maxClock = [](NvmlDevice, int, unsigned*) { return 3; };
  const Detected seen = detect({.gpus = 2}, nvml);
  REQUIRE(seen.node.gpus.size() == 2);
  CHECK(seen.node.gpus[0].uuid.empty());
  CHECK(seen.node.gpus[0].memoryGigabytesPerSecond == 0);
  CHECK(seen.node.gpus[0].sm == 90);
  REQUIRE(seen.notes.size() == 2);
  CHECK(seen.notes[0] == "nvmlDeviceGetUUID gave error 999: GPUs cannot be told apart by uuid.");

  nvml = fakeNvml();
  nvml.init = [] { return 9; };
  fake = {.gpus = 2};
  TopologyNode node;
  std::vector<std::string> notes;
  detectGpus(nvml, "/nowhere", &node, &notes);
  CHECK(node.gpus.empty());
  REQUIRE(notes.size() == 1);
  CHECK(notes[0] == "nvmlInit_v2 gave error 9: GPUs cannot be looked at.");
}

TEST_CASE("detection: multicast belongs to the GPU with the uuid, however CUDA counts", "[topology]") {
  Detected seen = detect({.gpus = 3}, fakeNvml());
  DriverQueries driver;
  driver.init = [](unsigned) { return 0; };
  driver.count = [](int* count) { return *count = 2, 0; };
  // CUDA_VISIBLE_DEVICES=2,1
  driver.byIndex = [](int* device, int index) { return *device = 10 + index, 0; };
  driver.uuid = [](unsigned char* bytes, int device) {
    std::memset(bytes, 0, 16);
    bytes[0] = static_cast<unsigned char>(device == 10 ? 2 : 1);
    return 0;
  };
  driver.attribute = [](int* value, int attribute, int device) {
    CHECK(attribute == 132);
    return *value = device == 10 ? 1 : 0, 0;
  };
  detectMulticast(driver, &seen.node, &seen.notes);
  CHECK(seen.notes.empty());
  CHECK_FALSE(seen.node.gpus[0].multicast);
  CHECK_FALSE(seen.node.gpus[1].multicast);
  CHECK(seen.node.gpus[2].multicast);

  driver.attribute = nullptr;
  detectMulticast(driver, &seen.node, &seen.notes);
  CHECK(seen.notes.size() == 1);
}

TEST_CASE("detection: this machine, whatever it has", "[topology]") {
  const Topology topology = detectTopology();
  REQUIRE(topology.nodes.size() == 1);
  CHECK(topology.nodes[0].cpu.cores >= 1);
  const Result<Topology> again = parseTopology(topologyJson(topology), "detected");
  INFO(again.status().message());
  REQUIRE(again.ok());
  CHECK(again.value() == topology);
}
