// LOWPRECISION on GPUs besides what tests/suites asks of it: graphs, and one rank on each GPU.
#include <barrier>

#include "tests/gpu/device_ranks.h"

using namespace fccl::test;

namespace {

FusedCase caseOf(fcclFusionPattern_t pattern, fcclDataType_t dtype, int64_t tokens, int64_t hidden) {
  FusedCase asked;
  asked.pattern = pattern;
  asked.dtype = dtype;
  asked.tokens = tokens;
  asked.hidden = hidden;
  asked.strategy = fcclStrategyLowPrecision;
  return asked;
}

}  // namespace

TEST_CASE("CUDA low precision: one rank captures and replays what the other calls eagerly") {
  FCCL_NEED_GPUS(1);
  CudaRanks cuda(2);
  for (const fcclFusionPattern_t pattern : {fcclPatternAllReduce, fcclPatternResidualRmsNormOutQuantNvfp4}) {
    const FusedCase asked = caseOf(pattern, fcclBfloat16, 9, 2880);
    FusedProblem problem(asked, 2);
    holdInFp8(problem, false);
    // The graph is on the GPU before the other rank's kernel waits for it: bringing it there may wait for the GPU.
    std::barrier together(2);
    runFused(cuda.group(), problem, [&](Rank& rank, FusedBuffers& own) {
      RankDevice& device = cuda.device(rank.rank);
      device.reset();
      DeviceArgs call(device, asked, own);
      device.synchronize();
      cudaGraphExec_t replay = nullptr;
      fcclResult_t result = fcclSuccess;
      if (rank.rank == 0) {
        cudaGraph_t graph;
        cudaOk(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeRelaxed), "begin of the capture");
        result = fcclAllReduceFused(&call.args(), rank.comm, device.stream());
        cudaOk(cudaStreamEndCapture(device.stream(), &graph), "end of the capture");
        cudaOk(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");
        cudaOk(cudaGraphDestroy(graph), "cudaGraphDestroy");
        cudaOk(cudaGraphUpload(replay, device.stream()), "cudaGraphUpload");
        device.synchronize();
      }
      together.arrive_and_wait();
      for (int i = 0; i < 7 && result == fcclSuccess; ++i) {
        if (rank.rank == 0) {
          cudaOk(cudaGraphLaunch(replay, device.stream()), "cudaGraphLaunch");
        } else {
          result = fcclAllReduceFused(&call.args(), rank.comm, device.stream());
        }
      }
      device.synchronize();
      together.arrive_and_wait();
      if (replay != nullptr) cudaOk(cudaGraphExecDestroy(replay), "cudaGraphExecDestroy");
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
    const FusedCase asked = caseOf(pattern, pattern % 2 == 0 ? fcclBfloat16 : fcclFloat32, 130, 1920);
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
