// Facts of a group of ranks that does not exist: from a topology, for decisions on paper.
#pragma once

#include "tuner/registry.h"

namespace fccl {

// Rank r on the r-th GPU of the topology; without GPUs a HOST group. What is measured when ranks meet has the values
// of a communicator with default settings and two far cores.
Facts paperFacts(const Topology& topology, int ranks);

}  // namespace fccl
