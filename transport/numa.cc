#include "transport/numa.h"

#include <hwloc.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"

namespace fccl {
namespace {

struct BitmapFree {
  void operator()(hwloc_bitmap_t bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, BitmapFree>;

hwloc_topology_t load() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return nullptr;
  // Cores and NUMA nodes are all that is used here; looking for caches and devices takes most of the time.
  hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
  hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
  if (hwloc_topology_load(topology) != 0) {
    hwloc_topology_destroy(topology);
    return nullptr;
  }
  return topology;
}

// Never freed, since a thread may still ask while the process exits. Null where hwloc finds nothing.
hwloc_topology_t machine() {
  static const hwloc_topology_t topology = load();
  return topology;
}

Bitmap allowedSet(hwloc_topology_t topology) {
  Bitmap set(hwloc_bitmap_alloc());
  if (set == nullptr) return nullptr;
  if (hwloc_get_cpubind(topology, set.get(), HWLOC_CPUBIND_THREAD) != 0 || hwloc_bitmap_iszero(set.get())) {
    hwloc_bitmap_copy(set.get(), hwloc_topology_get_allowed_cpuset(topology));
  }
  return set;
}

// The allowed processors of each core that has any; where hwloc sees no cores, each processor by itself.
std::vector<Bitmap> allowedCoreSets(hwloc_topology_t topology) {
  std::vector<Bitmap> cores;
  const Bitmap allowed = allowedSet(topology);
  if (allowed == nullptr) return cores;
  const hwloc_obj_type_t type = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  for (hwloc_obj_t core = nullptr; (core = hwloc_get_next_obj_by_type(topology, type, core)) != nullptr;) {
    Bitmap usable(hwloc_bitmap_dup(core->cpuset));
    if (usable == nullptr) break;
    hwloc_bitmap_and(usable.get(), usable.get(), allowed.get());
    if (!hwloc_bitmap_iszero(usable.get())) cores.push_back(std::move(usable));
  }
  return cores;
}

// Asked of the kernel, and the pages placed by it, because hwloc's first use loads all of its plug-ins, graphics
// libraries among them: no way to start a communicator that binds nothing. hwloc has no call that prevents it.
bool severalNumaNodes() {
  static const bool several = [] {
    std::ifstream file("/sys/devices/system/node/online");  // "0" or "0-3" or "0,2"
    std::string nodes;
    std::getline(file, nodes);
    return nodes.find_first_of(",-") != std::string::npos;
  }();
  return several;
}

}  // namespace

Status bindThisThread(int localRank, int localRanks) {
  if (localRanks < 1 || localRank < 0 || localRank >= localRanks) {
    return failure(fcclInvalidArgument, "rank {} of {} cannot be bound to a core; expected 0 <= rank < ranks",
                   localRank, localRanks);
  }
  const hwloc_topology_t topology = machine();
  if (topology == nullptr) {
    return failure(fcclSystemError,
                   "hwloc cannot read this machine's layout, so no thread can be bound; set FCCL_BIND_CORES=0");
  }
  const std::vector<Bitmap> cores = allowedCoreSets(topology);
  if (cores.empty()) return failure(fcclSystemError, "no core is allowed to this thread; set FCCL_BIND_CORES=0");
  const size_t rank = static_cast<size_t>(localRank);
  const size_t ranks = static_cast<size_t>(localRanks);
  const size_t index = ranks <= cores.size() ? rank * cores.size() / ranks : rank % cores.size();
  if (hwloc_set_cpubind(topology, cores[index].get(), HWLOC_CPUBIND_THREAD) != 0) {
    return failure(fcclSystemError, "binding a thread to core {} failed: {}; set FCCL_BIND_CORES=0", index,
                   std::strerror(errno));
  }
  FCCL_INFO("rank {} of {} here is bound to core {} of {} allowed", localRank, localRanks, index, cores.size());
  return {};
}

int allowedCores() {
  // The mask grows with the machine; the kernel says EINVAL while it is too small.
  for (size_t processors = CPU_SETSIZE; processors <= size_t{1} << 20; processors *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(processors),
                                                               [](cpu_set_t* s) { CPU_FREE(s); });
    if (set == nullptr) return 1;
    const size_t bytes = CPU_ALLOC_SIZE(processors);
    if (::sched_getaffinity(0, bytes, set.get()) == 0) return std::max(1, CPU_COUNT_S(bytes, set.get()));
    if (errno != EINVAL) return 1;
  }
  return 1;
}

int thisNumaNode() {
  unsigned processor = 0;
  unsigned node = 0;
  return ::syscall(SYS_getcpu, &processor, &node, nullptr) == 0 ? static_cast<int>(node) : -1;
}

void placeOnThisNumaNode(void* data, size_t bytes) {
  const int node = thisNumaNode();
  if (node < 0 || !severalNumaNodes()) return;
  constexpr size_t kBits = sizeof(unsigned long) * 8;
  const size_t bit = static_cast<size_t>(node);
  std::vector<unsigned long> nodes(bit / kBits + 1);
  nodes[bit / kBits] = 1UL << bit % kBits;
  // Preferred, so that a full node gives pages of another one rather than an error. The kernel reads one bit less than
  // it is told.
  if (::syscall(SYS_mbind, data, bytes, MPOL_PREFERRED, nodes.data(), nodes.size() * kBits + 1, 0) != 0) {
    FCCL_INFO("{} bytes could not be placed on NUMA node {}: {}", bytes, node, std::strerror(errno));
  }
}

std::string describe() {
  const hwloc_topology_t topology = machine();
  if (topology == nullptr) return fmt::format("{} processors allowed, layout unknown", allowedCores());
  const int cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
  const int nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
  return fmt::format("{} of {} cores allowed, {} NUMA node{}", allowedCoreSets(topology).size(),
                     cores > 0 ? cores : hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU), nodes,
                     nodes == 1 ? "" : "s");
}

}  // namespace fccl
