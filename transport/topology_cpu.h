// The CPU side of a topology, through hwloc.
#pragma once

#include "transport/topology.h"

namespace fccl {

// A node without GPUs from hwloc's XML (lstopo out.xml).
Result<Topology> topologyOfHwlocXml(const std::string& xml, const std::string& nameInErrors);

// This machine's; false where hwloc cannot read it.
bool detectCpu(TopologyCpu* cpu);

}  // namespace fccl
