// Where threads (through hwloc) and memory are placed. The machine's layout is read once per process, when a thread is
// first bound, and kept; what this process is allowed to use is asked each time.
#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"

namespace fccl {

// Binds the calling thread to one of the cores that it is allowed to use: those are dealt out evenly, far apart, over
// `localRanks` ranks, and go round where ranks outnumber them. `localRank` counts the ranks that share one allowed set.
Status bindThisThread(int localRank, int localRanks);

// Processors in the calling thread's affinity mask, at least 1.
int allowedCores();

// NUMA node (as the system numbers it) of the processor that the calling thread runs on, or -1.
int thisNumaNode();

// Asks that pages of [data, data + bytes) that do not exist yet be taken from the calling thread's NUMA node. A wish:
// nothing happens on a machine with one node, or where the system refuses.
void placeOnThisNumaNode(void* data, size_t bytes);

// "2 of 64 cores allowed, 2 NUMA nodes".
std::string describe();

}  // namespace fccl
