// Hidden, for its length: every pattern, type, strategy and number of tokens and columns of a grid, through the C API
// on ranks that share a GPU; half of the calls are captured in graphs. `make gpu-check` runs it.
//
// Calls take their rows from a pool, each from another place, so that no call finds the data of the one before it. The
// pool as one batch gives the bits of every row, which are compared with the float64 reference on the host; every call
// of the grid must then give the same bits for its rows, and is compared on the GPU, without the host in between.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <random>

#include "tests/gpu/device_checks.h"
#include "tests/gpu/device_ranks.h"

using namespace fccl::test;

namespace {

constexpr int64_t kPoolRows = 1152;
constexpr std::array<int64_t, 10> kTokens = {0, 1, 2, 3, 7, 64, 127, 128, 129, 1000};
constexpr std::array<int64_t, 8> kHidden = {64, 96, 2880, 4096, 5120, 7168, 8192, 16384};
constexpr std::array kTypes = {fcclBfloat16, fcclFloat16, fcclFloat32};
constexpr std::array kStrategies = {fcclStrategyAuto, fcclStrategyOneshot, fcclStrategyTwoshot, fcclStrategyMinLatency};

struct GridCall {
  FusedCase shape;
  int64_t firstRow;
  bool captured;
};

// All buffers of one rank, for the largest shape of the grid, or those with what the outputs must be.
struct PoolBuffers {
  static constexpr size_t kElements = static_cast<size_t>(kPoolRows) * kHidden.back();
  static constexpr size_t kBytes = 7 * (kElements * 4 + 4096);

  char *reduced, *residual, *norm, *quant;
  uint8_t* scales;

  explicit PoolBuffers(RankDevice& device) {
    const auto take = [&](size_t bytes) {
      return static_cast<char*>(device.take(bytes + ExpectedOutputs::kCanaryBytes));
    };
    for (char** buffer : {&reduced, &residual, &norm}) *buffer = take(kElements * 4);
    quant = take(kElements);
    scales = reinterpret_cast<uint8_t*>(take(kElements / 16));
  }
};

// What one rank has for the whole grid.
struct GridRank {
  RankDevice& device;
  int rank, ranks;
  char *input, *residual, *weight;
  float *fp8Scale, *globalScale;
  uint32_t* wrong;
  PoolBuffers outputs;
  std::vector<cudaGraphExec_t> graphs;  // per call; null where it is eager

  GridRank(RankDevice& own, int number, int count)
      : device(own),
        rank(number),
        ranks(count),
        input(static_cast<char*>(own.take(PoolBuffers::kElements * 4))),
        residual(static_cast<char*>(own.take(PoolBuffers::kElements * 4))),
        weight(static_cast<char*>(own.take(kHidden.back() * 4))),
        fp8Scale(static_cast<float*>(own.take(4))),
        globalScale(static_cast<float*>(own.take(4))),
        wrong(static_cast<uint32_t*>(own.take(4096 * 4))),
        outputs(own) {
    const FusedCase usual;
    device.upload(fp8Scale, &usual.fp8DequantScale, 4);
    device.upload(globalScale, &usual.nvfp4GlobalScale, 4);
  }

  // The rows whose residual this rank has: the first, and how many.
  std::pair<int64_t, int64_t> residualRows(const FusedCase& shape) const {
    std::pair<int64_t, int64_t> own{0, shape.tokens};
    if (shape.sharded && fcclResidualShard(shape.tokens, ranks, rank, &own.first, &own.second) != fcclSuccess) {
      throw std::runtime_error(fcclGetLastError(nullptr));
    }
    return own;
  }

  fcclFusedArgs_t argsOf(const GridCall& call) const {
    const FusedCase& shape = call.shape;
    const PatternTraits& has = traits(shape.pattern);
    const size_t at = static_cast<size_t>(call.firstRow * shape.hidden) * dtypeBytes(shape.dtype);
    fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
    args.pattern = shape.pattern;
    args.dtype = shape.dtype;
    args.tokens = shape.tokens;
    args.hidden = shape.hidden;
    args.strategy = shape.strategy;
    args.input = input + at;
    if (!has.norm || shape.reducedOut) args.reducedOut = outputs.reduced;
    if (has.norm) args.weight = weight;
    if (has.norm) args.eps = shape.eps;
    if (has.residual) {
      const int64_t before = residualRows(shape).first * shape.hidden;
      args.residual = residual + at + static_cast<size_t>(before) * dtypeBytes(shape.dtype);
    }
    args.residualSharded = shape.sharded ? 1 : 0;
    if (has.residual) args.residualOut = outputs.residual;
    if (has.normOut) args.normOut = outputs.norm;
    if (has.quant != Quant::kNone) args.quantOut = outputs.quant;
    if (has.quant == Quant::kFp8) args.fp8DequantScale = fp8Scale;
    if (has.quant == Quant::kNvfp4) {
      args.nvfp4GlobalScale = globalScale;
      args.scaleOut = outputs.scales;
      args.scaleLayout = shape.layout;
    }
    return args;
  }
};

int64_t quantBytes(const FusedCase& shape) {
  const Quant quant = traits(shape.pattern).quant;
  const auto count = static_cast<int64_t>(shape.count());
  return quant == Quant::kFp8 ? count : quant == Quant::kNvfp4 ? count / 2 : 0;
}

// The bits that all outputs of the pool must have: of its rows without and with a residual, in FP8 and in NVFP4.
struct PoolExpectation {
  PoolBuffers plain;  // reduced, norm
  PoolBuffers fp8;    // residual, norm, quant
  PoolBuffers nvfp4;  // quant, scales in the linear layout

  explicit PoolExpectation(RankDevice& device) : plain(device), fp8(device), nvfp4(device) {}

  ExpectedOutputs of(const GridCall& call, const GridRank& own) const {
    const fcclFusedArgs_t args = own.argsOf(call);
    const FusedCase& shape = call.shape;
    const PatternTraits& has = traits(shape.pattern);
    const auto bytes = static_cast<int64_t>(shape.count() * dtypeBytes(shape.dtype));
    const int64_t rowBytes = shape.hidden * static_cast<int64_t>(dtypeBytes(shape.dtype));
    const int64_t at = call.firstRow * rowBytes;
    const auto [firstResidual, residuals] = own.residualRows(shape);
    const bool isFp8 = has.quant == Quant::kFp8;
    const int64_t quantAt = call.firstRow * shape.hidden / (isFp8 ? 1 : 2);
    const int64_t blocks = shape.hidden / 16;
    return {{{static_cast<char*>(args.reducedOut), plain.reduced + at, bytes},
             {static_cast<char*>(args.residualOut), fp8.residual + at + firstResidual * rowBytes, residuals * rowBytes},
             {static_cast<char*>(args.normOut), (has.residual ? fp8.norm : plain.norm) + at, bytes},
             {static_cast<char*>(args.quantOut), (isFp8 ? fp8.quant : nvfp4.quant) + quantAt, quantBytes(shape)}},
            {static_cast<uint8_t*>(args.scaleOut), nvfp4.scales + call.firstRow * blocks, shape.tokens, blocks,
             shape.layout, static_cast<int64_t>(scaleBytes(shape.tokens, shape.hidden, shape.layout))}};
  }
};

// The calls of one type and width, in an order of their own; captured ones come twice. Behind the strategies comes a
// residual that is sharded, where the pattern has one and kernels take the row.
std::vector<GridCall> callsOf(const FusedCase& pool, std::mt19937& random) {
  std::vector<GridCall> calls;
  size_t index = 0;
  for (size_t t = 0; t < kTokens.size(); ++t) {
    for (const fcclFusionPattern_t pattern : allPatterns()) {
      for (size_t s = 0; s <= kStrategies.size(); ++s, ++index) {
        constexpr size_t kMostShardedBytes = 32 << 10;
        FusedCase shape = pool;
        shape.sharded = s == kStrategies.size();
        const size_t rowBytes = static_cast<size_t>(pool.hidden) * dtypeBytes(pool.dtype);
        if (shape.sharded && (!traits(pattern).residual || rowBytes > kMostShardedBytes)) continue;
        shape.pattern = pattern;
        shape.tokens = kTokens[t];
        shape.strategy = shape.sharded ? fcclStrategyAuto : kStrategies[s];
        shape.layout = static_cast<fcclScaleLayout_t>(index % 3);
        shape.reducedOut = index % 5 == 0 && !shape.sharded;
        const auto firstRow = static_cast<int64_t>(random() % static_cast<unsigned>(kPoolRows - kTokens[t] + 1));
        calls.push_back({shape, firstRow, (t + static_cast<size_t>(pattern) + s) % 2 == 0});
      }
    }
  }
  return calls;
}

class Grid {
 public:
  explicit Grid(int ranks) : cuda_(ranks, cudaConfig(), PoolBuffers::kBytes), shared_(3 * PoolBuffers::kBytes) {
    cudaOk(loadDeviceChecks(), "loadDeviceChecks");
    for (int r = 0; r < ranks; ++r) ranks_.emplace_back(cuda_.device(r), r, ranks);
    expected_ = std::make_unique<PoolExpectation>(shared_);
    shared_.synchronize();
  }

  void run(fcclDataType_t dtype, int64_t hidden) {
    FusedCase pool;
    pool.dtype = dtype;
    pool.tokens = kPoolRows;
    pool.hidden = hidden;
    pool.layout = fcclScaleLinear;
    pool.data = DataKind::kSpecial;
    pool.seed = static_cast<uint64_t>(hidden) + static_cast<uint64_t>(dtype);
    INFO(ranks_.size() << " ranks, the pool of " << pool.describe());
    FusedProblem problem(pool, static_cast<int>(ranks_.size()));
    expectRows(problem);
    std::mt19937 random(static_cast<unsigned>(pool.seed));
    const std::vector<GridCall> calls = callsOf(pool, random);
    std::vector<size_t> order;
    for (size_t i = 0; i < calls.size(); ++i) order.insert(order.end(), calls[i].captured ? 2 : 1, i);
    std::shuffle(order.begin(), order.end(), random);
    capture(calls);
    // Nobody runs far ahead: who finds the launch queue of a shared GPU full waits inside CUDA, and may keep the
    // others, whose kernels would empty it, from launching them.
    constexpr size_t kAhead = 32;
    std::barrier together(static_cast<std::ptrdiff_t>(ranks_.size()));
    cuda_.group().run("the calls of the grid", [&](Rank& rank) {
      GridRank& own = ranks_[static_cast<size_t>(rank.rank)];
      for (size_t n = 0; n < order.size(); ++n) {
        const size_t i = order[n];
        if (own.graphs[i] == nullptr) {
          enqueue(rank, own, calls, i);
        } else {
          cudaOk(cudaGraphLaunch(own.graphs[i], own.device.stream()), "cudaGraphLaunch");
        }
        if (n % kAhead == kAhead - 1) together.arrive_and_wait();
      }
      own.device.synchronize();
    });
    judge(calls, order);
  }

 private:
  // Makes the expectation from three calls for the whole pool, once they are seen to be right.
  void expectRows(FusedProblem& problem) {
    cuda_.group().run("the pool's data", [&](Rank& rank) {
      GridRank& own = ranks_[static_cast<size_t>(rank.rank)];
      const Bytes& input = problem.inputs[static_cast<size_t>(rank.rank)];
      own.device.upload(own.input, input.data(), input.size());
      own.device.upload(own.residual, problem.residual.data(), problem.residual.size());
      own.device.upload(own.weight, problem.weight.data(), problem.weight.size());
      own.device.synchronize();
    });
    const std::array<std::pair<fcclFusionPattern_t, PoolBuffers*>, 3> all = {
        std::pair{fcclPatternRmsNorm, &expected_->plain},
        {fcclPatternResidualRmsNormOutQuantFp8, &expected_->fp8},
        {fcclPatternResidualRmsNormOutQuantNvfp4, &expected_->nvfp4}};
    for (const auto& [pattern, kept] : all) {
      GridCall call{problem.asked(), 0, false};
      call.shape.pattern = pattern;
      call.shape.reducedOut = true;
      cuda_.group().run("the pool in one call", [&](Rank& rank) {
        GridRank& own = ranks_[static_cast<size_t>(rank.rank)];
        const fcclFusedArgs_t args = own.argsOf(call);
        rank.ok(fcclAllReduceFused(&args, rank.comm, own.device.stream()), patternName(pattern));
        own.device.synchronize();
      });
      const size_t bytes = problem.residual.size();
      const PoolBuffers& first = ranks_[0].outputs;
      FusedOutputs outputs;
      const auto keep = [&](Bytes* host, const void* from, void* to, size_t count) {
        host->resize(count);
        shared_.download(host->data(), from, count);
        shared_.upload(to, host->data(), count);
      };
      const bool isNvfp4 = traits(pattern).quant == Quant::kNvfp4;
      keep(&outputs.reduced, first.reduced, kept->reduced, bytes);
      if (traits(pattern).residual) keep(&outputs.residual, first.residual, kept->residual, bytes);
      keep(&outputs.norm, first.norm, kept->norm, bytes);
      keep(&outputs.quant, first.quant, kept->quant, static_cast<size_t>(quantBytes(call.shape)));
      if (isNvfp4)
        keep(&outputs.scales, first.scales, kept->scales, scaleBytes(kPoolRows, call.shape.hidden, fcclScaleLinear));
      shared_.synchronize();
      const std::string wrong = problem.check(pattern, outputs, outputs.norm);
      if (!wrong.empty()) FAIL(patternName(pattern) << ": " << wrong);
    }
  }

  void enqueue(Rank& rank, GridRank& own, const std::vector<GridCall>& calls, size_t i) {
    const fcclFusedArgs_t args = own.argsOf(calls[i]);
    const ExpectedOutputs outputs = expected_->of(calls[i], own);
    cudaOk(prepareOutputs(outputs, own.device.stream()), "prepareOutputs");
    rank.ok(fcclAllReduceFused(&args, rank.comm, own.device.stream()), calls[i].shape.describe());
    cudaOk(checkOutputs(outputs, own.wrong + i, own.device.stream()), "checkOutputs");
  }

  // Graphs are on the GPU before any rank's kernel waits for another's.
  void capture(const std::vector<GridCall>& calls) {
    cuda_.group().run("captures", [&](Rank& rank) {
      GridRank& own = ranks_[static_cast<size_t>(rank.rank)];
      const cudaStream_t stream = own.device.stream();
      const std::vector<uint32_t> zeros(calls.size());
      own.device.upload(own.wrong, zeros.data(), zeros.size() * 4);
      own.graphs.assign(calls.size(), nullptr);
      for (size_t i = 0; i < calls.size(); ++i) {
        if (!calls[i].captured) continue;
        cudaGraph_t graph = nullptr;
        cudaOk(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
        enqueue(rank, own, calls, i);
        cudaOk(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
        cudaOk(cudaGraphInstantiate(&own.graphs[i], graph, 0), "cudaGraphInstantiate");
        cudaOk(cudaGraphDestroy(graph), "cudaGraphDestroy");
        cudaOk(cudaGraphUpload(own.graphs[i], stream), "cudaGraphUpload");
      }
      own.device.synchronize();
    });
  }

  void judge(const std::vector<GridCall>& calls, const std::vector<size_t>& order) {
    std::vector<std::vector<uint32_t>> wrong(ranks_.size(), std::vector<uint32_t>(calls.size()));
    cuda_.group().run("the results", [&](Rank& rank) {
      const auto r = static_cast<size_t>(rank.rank);
      GridRank& own = ranks_[r];
      own.device.download(wrong[r].data(), own.wrong, wrong[r].size() * 4);
      fcclResult_t async = fcclSuccess;
      rank.ok(fcclCommGetAsyncError(rank.comm, &async), "fcclCommGetAsyncError");
      if (!rank.ok(async, "the asynchronous error")) {
        const auto first = std::find_if(order.begin(), order.end(), [&](size_t i) { return wrong[r][i] != 0; });
        if (first != order.end()) rank.expect(false, "after " + calls[*first].shape.describe());
      }
      const std::string damage = own.device.intact();
      rank.expect(damage.empty(), damage);
      for (const cudaGraphExec_t graph : own.graphs) {
        if (graph != nullptr) cudaOk(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
      }
    });
    for (size_t i = 0; i < calls.size(); ++i) {
      INFO(calls[i].shape.describe() << ", rows from " << calls[i].firstRow
                                     << (calls[i].captured ? ", captured" : ", eager"));
      std::vector<uint32_t> places;  // that are wrong, per rank
      for (const auto& each : wrong) places.push_back(each[i]);
      CHECK(places == std::vector<uint32_t>(places.size(), 0));
    }
  }

  CudaRanks cuda_;
  RankDevice shared_;
  std::unique_ptr<PoolExpectation> expected_;
  std::vector<GridRank> ranks_;
};

void runGrid(int ranks) {
  Grid grid(ranks);
  for (const fcclDataType_t dtype : kTypes) {
    for (const int64_t hidden : kHidden) grid.run(dtype, hidden);
  }
}

}  // namespace

TEST_CASE("CUDA grid: 2 ranks", "[.grid]") {
  FCCL_NEED_GPUS(1);
  runGrid(2);
}

TEST_CASE("CUDA grid: 3 ranks", "[.grid]") {
  FCCL_NEED_GPUS(1);
  runGrid(3);
}

TEST_CASE("CUDA grid: 4 ranks", "[.grid]") {
  FCCL_NEED_GPUS(1);
  runGrid(4);
}

TEST_CASE("CUDA grid: 8 ranks", "[.grid]") {
  FCCL_NEED_GPUS(1);
  runGrid(8);
}
