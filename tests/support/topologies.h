// The topology files that FCCL ships, for tests.
#pragma once

#include <string>

#include "tests/support/catch.h"
#include "tuner/paper_facts.h"

namespace fccl::test {

inline Topology shippedTopology(const std::string& name) {
  const Result<Topology> read = readTopology(std::string(FCCL_SOURCE_DIR) + "/transport/topologies/" + name + ".json");
  INFO(read.status().message());
  REQUIRE(read.ok());
  return read.value();
}

inline Facts shippedFacts(const std::string& name, int ranks) { return paperFacts(shippedTopology(name), ranks); }

}  // namespace fccl::test
