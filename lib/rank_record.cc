#include "lib/rank_record.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "lib/validate.h"
#include "transport/machine.h"

namespace fccl {
namespace {

// A virtual machine may report the whole cache of its host, of which it uses a part that nobody tells it.
constexpr size_t kMostCachePerRank = size_t{16} << 20;

CoreMask allowedCoreMask() {
  CoreMask mask{};
  static_assert(sizeof(mask) * 8 >= CPU_SETSIZE);
  if (sched_getaffinity(0, sizeof(mask), reinterpret_cast<cpu_set_t*>(mask.data())) < 0) mask = {};
  return mask;
}

// "0-3,8-11" has 8. 0 where the text is something else.
uint64_t countList(const std::string& text) {
  uint64_t count = 0;
  const char* at = text.c_str();
  while (*at >= '0' && *at <= '9') {
    char* end = nullptr;
    const unsigned long first = std::strtoul(at, &end, 10);
    unsigned long last = first;
    if (*end == '-') last = std::strtoul(end + 1, &end, 10);
    if (last < first) return 0;
    count += last - first + 1;
    at = *end == ',' ? end + 1 : end;
  }
  return count;
}

uint64_t coresOfLastLevelCache() {
  std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/shared_cpu_list");
  std::string line;
  return std::getline(file, line) ? countList(line) : 0;
}

uint64_t lastLevelCacheBytes() {
  const long level3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (level3 > 0) return static_cast<uint64_t>(level3);
  const long level2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return level2 > 0 ? static_cast<uint64_t>(level2) : kMostCachePerRank;
}

std::string number(int32_t value) { return fmt::format("{}", value); }
std::string versionText(int32_t value) {
  return fmt::format("{}.{}.{}", value / 10000, value / 100 % 100, value % 100);
}
std::string strategyText(int32_t value) { return strategyName(value); }
std::string sharedMemoryText(int32_t value) {
  return value == fcclSharedMemoryMemfd ? "memfd" : value == fcclSharedMemoryPosix ? "posix" : "auto";
}
std::string simdText(int32_t value) { return host::simdName(static_cast<host::Simd>(value)); }

std::string deviceText(int32_t value) { return value == fcclDeviceCuda ? "CUDA" : "HOST"; }
std::string cudaMemoryText(int32_t value) {
  const auto way = static_cast<CudaMemoryWay>(value);
  return way == CudaMemoryWay::kVmm ? "vmm" : way == CudaMemoryWay::kIpc ? "ipc" : "auto";
}

struct Field {
  const char* name;
  int32_t RankRecord::*value;
  std::string (*text)(int32_t);
};

constexpr Field kEqualFields[] = {
    {"The version of FCCL", &RankRecord::version, versionText},
    {"deviceType (FCCL_DEVICE)", &RankRecord::deviceType, deviceText},
    {"strategy (FCCL_STRATEGY)", &RankRecord::strategy, strategyText},
    {"checkCalls (FCCL_CHECK)", &RankRecord::checkCalls, number},
    {"sharedMemory (FCCL_SHARED_MEMORY)", &RankRecord::sharedMemory, sharedMemoryText},
    {"slotBytes (FCCL_SLOT_BYTES)", &RankRecord::slotBytes, number},
    {"The instruction set (FCCL_SIMD)", &RankRecord::simd, simdText},
    {"allowSharedDevice (FCCL_ALLOW_SHARED_DEVICE)", &RankRecord::allowSharedDevice, number},
    {"cudaWorkspaceBytes (FCCL_CUDA_WORKSPACE_BYTES)", &RankRecord::cudaWorkspaceBytes, number},
    {"FCCL_CUDA_MEMORY", &RankRecord::cudaMemory, cudaMemoryText},
    {"nccl (FCCL_NCCL)", &RankRecord::nccl, number},
};

Status agreeOnDevices(std::span<const RankRecord> records) {
  if (records[0].deviceType != fcclDeviceCuda || records[0].allowSharedDevice != 0) return {};
  for (size_t r = 1; r < records.size(); r++) {
    for (size_t other = 0; other < r; other++) {
      if (records[r].cudaUuid != records[other].cudaUuid) continue;
      return failure(fcclInvalidUsage,
                     "Rank {} and rank {} are on the same GPU ({}). Give each rank a GPU of its own: cudaSetDevice, or "
                     "cudaDevice in the configuration, with its rank on the machine, or another CUDA_VISIBLE_DEVICES; "
                     "for tests allow it with allowSharedDevice (FCCL_ALLOW_SHARED_DEVICE=1).",
                     other, r, describeUuid(records[r].cudaUuid));
    }
  }
  return {};
}

int countCores(const CoreMask& mask) {
  int count = 0;
  for (uint64_t word : mask) count += std::popcount(word);
  return count;
}

}  // namespace

Result<RankRecord> makeRankRecord(const Options& options) {
  RankRecord record;
  record.version = FCCL_VERSION_CODE;
  record.deviceType = options.deviceType;
  record.strategy = options.strategy;
  record.checkCalls = options.checkCalls ? 1 : 0;
  record.sharedMemory = options.sharedMemory;
  record.slotBytes = options.slotBytes;
  record.simd = static_cast<int32_t>(options.simd);
  record.allowSharedDevice = options.allowSharedDevice ? 1 : 0;
  record.cudaWorkspaceBytes = options.cudaWorkspaceBytes;
  record.cudaMemory = static_cast<int32_t>(options.cudaMemory);
  record.nccl = options.wantsNccl() ? 1 : 0;
  record.tuningFile = options.tuningFile.empty() ? 0 : 1;
  if (options.deviceType == fcclDeviceCuda) {
    FCCL_TRY_ASSIGN(record.cudaUuid, cudaUuid(options.cudaDevice));
    FCCL_TRY_ASSIGN(record.cudaGeneration, cudaGeneration(options.cudaDevice));
  }
  record.cacheBytes = lastLevelCacheBytes();
  record.coresPerCache = coresOfLastLevelCache();
  const std::string id = options.hostId.empty() ? bootId() : options.hostId;
  std::memcpy(record.nodeId.data(), id.data(), std::min(id.size(), record.nodeId.size() - 1));
  record.cores = allowedCoreMask();
  return record;
}

Status agreeOnRecords(std::span<const RankRecord> records) {
  for (size_t r = 1; r < records.size(); r++) {
    for (const Field& field : kEqualFields) {
      const int32_t first = records[0].*field.value;
      const int32_t other = records[r].*field.value;
      if (first == other) continue;
      return failure(fcclInvalidArgument, "{} is {} on rank 0 and {} on rank {}; it must be the same on every rank.",
                     field.name, field.text(first), field.text(other), r);
    }
    if (records[r].nodeId != records[0].nodeId) {
      return failure(fcclInvalidArgument,
                     "Rank 0 and rank {} run on different machines (FCCL_HOSTID or boot id {} and {}); a communicator "
                     "needs all ranks on one.",
                     r, records[0].nodeId.data(), records[r].nodeId.data());
    }
  }
  return agreeOnDevices(records);
}

Neighbours sameCores(std::span<const RankRecord> records, int rank) {
  Neighbours result{0, 0};
  const CoreMask& mine = records[static_cast<size_t>(rank)].cores;
  for (size_t r = 0; r < records.size(); r++) {
    if (records[r].cores != mine) continue;
    if (r < static_cast<size_t>(rank)) result.index++;
    result.count++;
  }
  return result;
}

int coresOfAll(std::span<const RankRecord> records) {
  CoreMask all{};
  for (const RankRecord& record : records) {
    for (size_t i = 0; i < all.size(); i++) all[i] |= record.cores[i];
  }
  return std::max(1, countCores(all));
}

int ranksPerDevice(std::span<const RankRecord> records) {
  if (records[0].deviceType != fcclDeviceCuda) return 1;
  const auto sharing = [&](const RankRecord& record) {
    return std::ranges::count(records, record.cudaUuid, &RankRecord::cudaUuid);
  };
  int most = 1;
  for (const RankRecord& record : records) most = std::max(most, static_cast<int>(sharing(record)));
  return most;
}

GroupFacts groupOf(std::span<const RankRecord> records) {
  GroupFacts group;
  group.ranksPerGpu = ranksPerDevice(records);
  group.sm = std::ranges::min_element(records, {}, &RankRecord::cudaGeneration)->cudaGeneration;
  return group;
}

void addLinks(const Topology& topology, std::span<const RankRecord> records, GroupFacts* group) {
  const bool named = std::ranges::any_of(topology.nodes, [](const TopologyNode& node) {
    return std::ranges::any_of(node.gpus, [](const TopologyGpu& gpu) { return !gpu.uuid.empty(); });
  });
  std::vector<CudaUuid> known;
  std::vector<GpuPlace> places;
  const std::vector<GpuPlace> inOrder = placeInOrder(topology, static_cast<int>(records.size()));
  if (inOrder.empty()) return;
  for (const RankRecord& record : records) {
    GpuPlace place;
    if (named) {
      if (!findGpu(topology, describeUuid(record.cudaUuid), &place)) return;
    } else {
      // Ranks that share a GPU share its place.
      const auto same = std::ranges::find(known, record.cudaUuid);
      place = inOrder[static_cast<size_t>(same - known.begin())];
      if (same == known.end()) known.push_back(record.cudaUuid);
    }
    places.push_back(place);
  }
  // Peer access, nodes and generation are known from the ranks themselves.
  const GroupFacts facts = groupFacts(topology, places);
  group->link = facts.link;
  group->oneFabric = facts.oneFabric;
  group->multicast = facts.multicast;
  group->gigabytesPerSecond = facts.gigabytesPerSecond;
  group->latencyNanoseconds = facts.latencyNanoseconds;
  group->memoryGigabytesPerSecond = facts.memoryGigabytesPerSecond;
}

size_t cacheBytesPerRank(std::span<const RankRecord> records) {
  const auto ranks = static_cast<uint64_t>(records.size());
  const auto cores = static_cast<uint64_t>(coresOfAll(records));
  size_t smallest = kMostCachePerRank;
  for (const RankRecord& record : records) {
    // Ranks are taken to be spread evenly over the cores.
    const uint64_t sharing = record.coresPerCache == 0 ? cores : std::min(cores, record.coresPerCache);
    const uint64_t ranksPerCache = std::max<uint64_t>(1, (ranks * sharing + cores - 1) / cores);
    smallest = std::min<size_t>(smallest, record.cacheBytes / ranksPerCache);
  }
  return smallest;
}

}  // namespace fccl
