// LOWPRECISION on GPUs besides what tests/suites asks of it: graphs, and one rank on each GPU.
#include <barrier>
#include <optional>

#include "tests/gpu/replay.h"

using namespace fccl::test;

TEST_CASE("CUDA low precision: one rank captures and replays what the other calls eagerly") {
  FCCL_NEED_GPUS(1);
  CudaRanks cuda(2);
  for (const fcclFusionPattern_t pattern : {fcclPatternAllReduce, fcclPatternResidualRmsNormOutQuantNvfp4}) {
    const FusedCase asked = lowPrecisionCase(pattern, fcclBfloat16, 9, 2880);
    FusedProblem problem(asked, 2);
    holdInFp8(problem, false);
    // The graph is on the GPU before the other rank's kernel waits for it: bringing it there may wait for the GPU.
    std::barrier together(2);
    runFused(cuda.group(), problem, [&](Rank& rank, FusedBuffers& own) {
      RankDevice& device = cuda.device(rank.rank);
      device.reset();
      DeviceArgs call(device, asked, own);
      device.synchronize();
      fcclResult_t result = fcclSuccess;
      const auto enqueue = [&] { result = fcclAllReduceFused(&call.args(), rank.comm, device.stream()); };
      std::optional<Replay> replay;
      if (rank.rank == 0) replay.emplace(device.stream(), enqueue, cudaStreamCaptureModeRelaxed);
      together.arrive_and_wait();
      for (int i = 0; i < 7 && result == fcclSuccess; ++i) {
        if (replay) {
          replay->launch();
        } else {
          enqueue();
        }
      }
      device.synchronize();
      together.arrive_and_wait();
      call.fetch();
      return result;
    });
  }
}

TEST_CASE("CUDA low precision: one rank on each GPU") {
  FCCL_NEED_GPUS(2);
  const int ranks = gpuCount();
  fcclConfig_t config = cudaConfig();
  config.allowSharedDevice = 0;
  std::vector<fcclComm_t> comms(static_cast<size_t>(ranks));
  REQUIRE(fcclCommInitAll(comms.data(), ranks, &config) == fcclSuccess);
  RankGroup group(comms);
  for (const fcclFusionPattern_t pattern : allPatterns()) {
    const FusedCase asked = lowPrecisionCase(pattern, pattern % 2 == 0 ? fcclBfloat16 : fcclFloat32, 130, 1920);
    FusedProblem problem(asked, ranks);
    holdInFp8(problem, pattern % 3 == 0);
    runFused(group, problem, [&](Rank& rank, FusedBuffers& own) {
      cudaOk(cudaSetDevice(rank.rank), "cudaSetDevice");
      RankDevice device;
      DeviceArgs call(device, asked, own);
      device.synchronize();
      const fcclResult_t result = fcclAllReduceFused(&call.args(), rank.comm, device.stream());
      device.synchronize();
      call.fetch();
      return result;
    });
  }
}
