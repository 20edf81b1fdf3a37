// What detection says of real GPUs, against what CUDA says of them, and what a CUDA communicator makes of it.
#include <cstring>

#include "tests/gpu/device_ranks.h"
#include "transport/cuda_device.h"
#include "transport/topology.h"

using namespace fccl;
using namespace fccl::test;

TEST_CASE("CUDA topology: detection finds every GPU that this process sees, as CUDA has it") {
  FCCL_NEED_GPUS(1);
  const Topology topology = detectTopology();
  INFO(describeTopology(topology));
  std::vector<GpuPlace> places;
  for (int device = 0; device < gpuCount(); device++) {
    GpuPlace place;
    REQUIRE(findGpu(topology, describeUuid(cudaUuid(device).value()), &place));
    places.push_back(place);
    const TopologyGpu& gpu = gpuAt(topology, place);
    CHECK(gpu.sm == cudaGeneration(device).value());
    CHECK_FALSE(gpu.name.empty());
    // From the slowest card to the fastest there is.
    CHECK(gpu.memoryGigabytesPerSecond > 100);
    CHECK(gpu.memoryGigabytesPerSecond < 50'000);
  }
  for (int a = 0; a < gpuCount(); a++) {
    for (int b = 0; b < gpuCount(); b++) {
      if (a == b) continue;
      int access = 0;
      REQUIRE(cudaDeviceCanAccessPeer(&access, a, b) == cudaSuccess);
      const LinkFacts link = linkBetween(topology, places[static_cast<size_t>(a)], places[static_cast<size_t>(b)]);
      INFO("GPU " << a << " and " << b << ": " << linkKindName(link.kind));
      CHECK(link.peerAccess == (access != 0));
      CHECK(link.gigabytesPerSecond > 0);
    }
  }
}

TEST_CASE("CUDA topology: a communicator explains itself, and all ranks say the same") {
  FCCL_NEED_GPUS(1);
  fcclConfig_t config = cudaConfig();
  fcclComm_t comms[2];
  REQUIRE(fcclCommInitAll(comms, 2, &config) == fcclSuccess);
  fcclQuery_t query = FCCL_QUERY_INITIALIZER;
  query.pattern = fcclPatternResidualRmsNorm;
  query.tokens = 64;
  query.hidden = 8192;
  std::string texts[2];
  for (int r = 0; r < 2; r++) {
    texts[r].assign(16384, '\0');
    CHECK(fcclExplain(comms[r], &query, texts[r].data(), texts[r].size()) == fcclSuccess);
    texts[r].resize(std::strlen(texts[r].c_str()));
  }
  INFO(texts[0]);
  CHECK(texts[0] == texts[1]);
  CHECK(texts[0].find("* ONESHOT") != std::string::npos);
  CHECK(texts[0].find(gpuCount() == 1 ? "Ranks share a GPU" : "slowest way between two of them: ") !=
        std::string::npos);
  for (fcclComm_t comm : comms) CHECK(fcclCommDestroy(comm) == fcclSuccess);
}
