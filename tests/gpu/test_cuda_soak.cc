// Many calls of ever other shapes, strategies and patterns back to back, and many replays of graphs. The long ones are
// hidden; `make gpu-check` runs them.
#include <array>
#include <random>

#include "tests/gpu/device_checks.h"
#include "tests/gpu/device_ranks.h"

using namespace fccl::test;

namespace {

constexpr int kResidual = 3;  // every element of it

constexpr size_t kBytes = size_t{2} * 64 * 4096;  // of the largest mixed call

// One rank's buffers, input and sum in a window, so that every strategy can take every call; its calls are all on one
// stream.
struct SoakRank {
  fcclComm_t comm;
  cudaStream_t stream;
  int rank;
  int ranks;
  void *input, *sum, *residual, *weight, *residualOut, *normOut, *quantOut, *scaleOut;
  float* scale;
  uint32_t* call;
  uint32_t* wrong;

  SoakRank(CudaRanks& cuda, const CudaWindows& windows, int r, int count, size_t bytes)
      : comm(cuda.group().comm(r)),
        stream(cuda.device(r).stream()),
        rank(r),
        ranks(count),
        input(windows.at(r)),
        sum(windows.at(r) + bytes) {
    RankDevice& device = cuda.device(r);
    for (void** buffer : {&residual, &weight, &residualOut, &normOut, &quantOut}) {
      *buffer = device.take(bytes);
    }
    scaleOut = device.take(size_t{1} << 20);
    scale = static_cast<float*>(device.take(4));
    call = static_cast<uint32_t*>(device.take(4));
    wrong = static_cast<uint32_t*>(device.take(4));
    const std::vector<uint16_t> threes(bytes / 2, 0x4040);  // 3 in bf16
    const std::vector<uint16_t> ones(bytes / 2, 0x3f80);
    const float half = 0.5f;
    const uint32_t zero = 0;
    device.upload(residual, threes.data(), bytes);
    device.upload(weight, ones.data(), bytes);
    device.upload(scale, &half, 4);
    device.upload(call, &zero, 4);
    device.upload(wrong, &zero, 4);
  }

  // Input, the call, the check of its sum, all enqueued.
  void enqueue(const FusedCase& shape) const {
    const int64_t count = shape.tokens * shape.hidden;
    cudaOk(fillInput(input, count, rank, call, stream), "fillInput");
    fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
    args.pattern = shape.pattern;
    args.dtype = fcclBfloat16;
    args.tokens = shape.tokens;
    args.hidden = shape.hidden;
    args.input = input;
    if (!shape.sharded) args.reducedOut = sum;
    args.residualSharded = shape.sharded ? 1 : 0;
    args.strategy = shape.strategy;
    const bool norm = shape.pattern != fcclPatternAllReduce;
    const bool hasResidual = norm && shape.pattern != fcclPatternRmsNorm;
    if (norm) {
      args.weight = weight;
      args.eps = 1e-5f;
    }
    if (hasResidual) {
      args.residual = residual;
      args.residualOut = residualOut;
    }
    if (shape.pattern == fcclPatternRmsNorm || shape.pattern == fcclPatternResidualRmsNorm) args.normOut = normOut;
    if (shape.pattern == fcclPatternResidualRmsNormQuantFp8) {
      args.quantOut = quantOut;
      args.fp8DequantScale = scale;
    }
    if (shape.pattern == fcclPatternResidualRmsNormQuantNvfp4) {
      args.quantOut = quantOut;
      args.scaleOut = scaleOut;
      args.nvfp4GlobalScale = scale;
    }
    if (fcclAllReduceFused(&args, comm, stream) != fcclSuccess) throw std::runtime_error(fcclGetLastError(comm));
    if (!shape.sharded) cudaOk(checkSum(sum, 0, count, ranks, 0, call, wrong, stream), "checkSum");
    int64_t first = 0;
    int64_t rows = shape.tokens;
    if (shape.sharded) fcclResidualShard(shape.tokens, ranks, rank, &first, &rows);
    if (hasResidual && rows != 0) {
      cudaOk(checkSum(residualOut, first * shape.hidden, rows * shape.hidden, ranks, kResidual, call, wrong, stream),
             "checkSum");
    }
    cudaOk(nextCall(call, stream), "nextCall");
  }
};

std::vector<SoakRank> soakRanks(CudaRanks& cuda, const CudaWindows& windows, int count, size_t bytes = kBytes) {
  cudaOk(loadDeviceChecks(), "loadDeviceChecks");
  std::vector<SoakRank> ranks;
  for (int r = 0; r < count; r++) ranks.emplace_back(cuda, windows, r, count, bytes);
  return ranks;
}

void requireNoneWrong(CudaRanks& cuda, const std::vector<SoakRank>& ranks) {
  for (const SoakRank& rank : ranks) cudaOk(cudaStreamSynchronize(rank.stream), "cudaStreamSynchronize");
  for (const SoakRank& rank : ranks) {
    uint32_t wrong = 0;
    cuda.device(rank.rank).download(&wrong, rank.wrong, 4);
    INFO("rank " << rank.rank);
    REQUIRE(wrong == 0);
  }
}

FusedCase randomShape(std::mt19937& random) {
  constexpr std::array kPatterns = {fcclPatternAllReduce, fcclPatternRmsNorm, fcclPatternResidualRmsNorm,
                                    fcclPatternResidualRmsNormQuantFp8, fcclPatternResidualRmsNormQuantNvfp4};
  constexpr std::array kStrategies = {fcclStrategyAuto,       fcclStrategyOneshot, fcclStrategyTwoshot,
                                      fcclStrategyMinLatency, fcclStrategyUb,      fcclStrategyUb};
  constexpr std::array<int64_t, 7> kHidden = {16, 64, 96, 2880, 4096, 1040, 512};
  constexpr std::array<int64_t, 9> kTokens = {1, 2, 3, 7, 16, 17, 33, 63, 64};
  FusedCase shape;
  shape.pattern = kPatterns[random() % kPatterns.size()];
  shape.strategy = kStrategies[random() % kStrategies.size()];
  shape.sharded = traits(shape.pattern).residual && random() % 4 == 0;
  if (shape.sharded) shape.strategy = fcclStrategyAuto;
  shape.dtype = fcclBfloat16;
  shape.hidden = kHidden[random() % kHidden.size()];
  shape.tokens = kTokens[random() % kTokens.size()];
  return shape;
}

void mixedCalls(int count, int calls) {
  constexpr int kCallsBetweenLooks = 500;
  CudaRanks cuda(count);
  const CudaWindows windows(cuda, 2 * kBytes);
  const std::vector<SoakRank> ranks = soakRanks(cuda, windows, count);
  std::mt19937 random(static_cast<unsigned>(count));
  for (int call = 0; call < calls; call++) {
    const FusedCase shape = randomShape(random);
    for (const SoakRank& rank : ranks) rank.enqueue(shape);
    if (call % kCallsBetweenLooks == kCallsBetweenLooks - 1) requireNoneWrong(cuda, ranks);
  }
  requireNoneWrong(cuda, ranks);
}

void mixedReplays(int replays) {
  constexpr size_t kGraphs = 8;
  constexpr int kCallsPerGraph = 3;
  CudaRanks cuda(2);
  const CudaWindows windows(cuda, 2 * kBytes);
  const std::vector<SoakRank> ranks = soakRanks(cuda, windows, 2);
  std::mt19937 random(11);
  std::vector<std::array<cudaGraphExec_t, 2>> graphs(kGraphs);
  for (auto& graph : graphs) {
    std::vector<FusedCase> shapes;
    for (int i = 0; i < kCallsPerGraph; i++) shapes.push_back(randomShape(random));
    // Plans are made before the capture.
    for (const FusedCase& shape : shapes) {
      for (const SoakRank& rank : ranks) rank.enqueue(shape);
    }
    requireNoneWrong(cuda, ranks);
    for (size_t r = 0; r < 2; r++) {
      cudaGraph_t captured = nullptr;
      cudaOk(cudaStreamBeginCapture(ranks[r].stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
      for (const FusedCase& shape : shapes) ranks[r].enqueue(shape);
      cudaOk(cudaStreamEndCapture(ranks[r].stream, &captured), "cudaStreamEndCapture");
      cudaOk(cudaGraphInstantiate(&graph[r], captured, 0), "cudaGraphInstantiate");
      cudaOk(cudaGraphDestroy(captured), "cudaGraphDestroy");
      cudaOk(cudaGraphUpload(graph[r], ranks[r].stream), "cudaGraphUpload");
    }
    requireNoneWrong(cuda, ranks);
  }
  for (int replay = 0; replay < replays; replay++) {
    const auto& graph = graphs[random() % kGraphs];
    for (size_t r = 0; r < 2; r++) cudaOk(cudaGraphLaunch(graph[r], ranks[r].stream), "cudaGraphLaunch");
    if (replay % 7 == 0) {
      const FusedCase shape = randomShape(random);
      for (const SoakRank& rank : ranks) rank.enqueue(shape);
    }
    if (replay % 200 == 199) requireNoneWrong(cuda, ranks);
  }
  requireNoneWrong(cuda, ranks);
  for (const auto& graph : graphs) {
    for (cudaGraphExec_t executable : graph) cudaOk(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  }
}

}  // namespace

TEST_CASE(
    "CUDA: calls of mixed shapes, patterns and strategies, each input written when the call before it has ended") {
  FCCL_NEED_GPUS(1);
  for (const int count : {2, 3}) mixedCalls(count, 1500);
}

TEST_CASE("CUDA: replays of graphs of different shapes and strategies with eager calls between them") {
  FCCL_NEED_GPUS(1);
  mixedReplays(300);
}

TEST_CASE("CUDA soak: a hundred thousand calls of mixed shapes and patterns and strategies", "[.soak]") {
  FCCL_NEED_GPUS(1);
  for (const int count : {2, 4}) mixedCalls(count, 50'000);
}

TEST_CASE("CUDA soak: ten thousand replays of graphs of different shapes with eager calls between them", "[.soak]") {
  FCCL_NEED_GPUS(1);
  mixedReplays(10'000);
}

TEST_CASE("CUDA soak: five thousand TWOSHOT calls of 4096 x 2880 on 8 ranks back to back", "[.soak]") {
  FCCL_NEED_GPUS(1);
  constexpr int kRanks = 8;
  FusedCase shape;
  shape.pattern = fcclPatternResidualRmsNorm;
  shape.tokens = 4096;
  shape.hidden = 2880;
  shape.strategy = fcclStrategyTwoshot;
  CudaRanks cuda(kRanks, cudaConfig(), size_t{256} << 20);
  const size_t bytes = static_cast<size_t>(shape.tokens * shape.hidden) * 2;
  const CudaWindows windows(cuda, 2 * bytes);
  const std::vector<SoakRank> ranks = soakRanks(cuda, windows, kRanks, bytes);
  for (int call = 0; call < 5000; call++) {
    for (const SoakRank& rank : ranks) rank.enqueue(shape);
    if (call % 500 == 499) requireNoneWrong(cuda, ranks);
  }
}
