#include "transport/topology_cpu.h"

#include <hwloc.h>

#include <algorithm>
#include <climits>
#include <memory>
#include <type_traits>

namespace fccl {
namespace {

struct Destroy {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Loaded = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, Destroy>;

// `xml` NULL: this machine. Null where hwloc cannot read it.
Loaded load(const std::string* xml) {
  hwloc_topology_t made = nullptr;
  if (hwloc_topology_init(&made) != 0) return nullptr;
  Loaded topology(made);
  hwloc_topology_set_all_types_filter(made, HWLOC_TYPE_FILTER_KEEP_NONE);
  hwloc_topology_set_type_filter(made, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
  hwloc_topology_set_type_filter(made, HWLOC_OBJ_PACKAGE, HWLOC_TYPE_FILTER_KEEP_ALL);
  if (xml != nullptr) {
    // The length counts the zero at the end.
    const int length = static_cast<int>(std::min<size_t>(xml->size() + 1, INT_MAX));
    if (hwloc_topology_set_xmlbuffer(made, xml->c_str(), length) != 0) return nullptr;
  }
  if (hwloc_topology_load(made) != 0) return nullptr;
  return topology;
}

TopologyCpu countIn(hwloc_topology_t topology) {
  const auto count = [&](hwloc_obj_type_t type) { return std::max(0, hwloc_get_nbobjs_by_type(topology, type)); };
  TopologyCpu cpu;
  cpu.sockets = std::max(1, count(HWLOC_OBJ_PACKAGE));
  cpu.numaNodes = std::max(1, count(HWLOC_OBJ_NUMANODE));
  cpu.cores = count(HWLOC_OBJ_CORE) > 0 ? count(HWLOC_OBJ_CORE) : std::max(1, count(HWLOC_OBJ_PU));
  return cpu;
}

}  // namespace

Result<Topology> topologyOfHwlocXml(const std::string& xml, const std::string& nameInErrors) {
  const Loaded loaded = load(&xml);
  if (loaded == nullptr) {
    return failure(fcclInvalidArgument,
                   "topology file {} looks like XML, and hwloc cannot read it; write it with `lstopo FILE.xml`.",
                   nameInErrors);
  }
  Topology topology;
  topology.name = nameInErrors;
  topology.source = "hwloc XML";
  topology.nodes.resize(1);
  topology.nodes[0].cpu = countIn(loaded.get());
  return topology;
}

bool detectCpu(TopologyCpu* cpu) {
  const Loaded loaded = load(nullptr);
  if (loaded == nullptr) return false;
  *cpu = countIn(loaded.get());
  return true;
}

}  // namespace fccl
