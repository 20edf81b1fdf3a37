// The strategies NCCL and NCCL_SYMMETRIC with the real NCCL, as far as one GPU goes: one rank, whose sum is its input,
// so that every bit is known. The test cases say SKIPPED where there is no NCCL.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "fccl_nccl.h"
#include "kernels/cuda/cuda_kernels.h"
#include "lib/testing.h"
#include "tests/gpu/device_ranks.h"
#include "tests/support/bootstrap_ranks.h"
#include "tests/support/text.h"
#include "transport/cuda_driver.h"
#include "transport/nccl_communicator.h"

using namespace fccl;
using namespace fccl::test;

namespace {

#define FCCL_NEED_NCCL()                                                                   \
  do {                                                                                     \
    FCCL_NEED_GPUS(1);                                                                     \
    if (!NcclLibrary::find("").ok()) FCCL_SKIP("no NCCL here: libnccl.so.2 is not found"); \
  } while (0)

fcclConfig_t ncclConfig(int workspaceBytes = 64 << 20) {
  fcclConfig_t config = cudaConfig();
  config.nccl = 1;
  config.cudaWorkspaceBytes = workspaceBytes;
  return config;
}

const Facts& factsOf(CudaRanks& cuda) { return testing::communicatorOf(cuda.group().comm(0)).facts(); }

// Those that this NCCL has on this machine.
std::vector<fcclStrategy_t> strategiesOf(CudaRanks& cuda) {
  std::vector<fcclStrategy_t> result{fcclStrategyNccl};
  const std::string reason = factsOf(cuda).noNcclWindow;
  if (reason.empty()) {
    result.push_back(fcclStrategyNcclSymmetric);
  } else {
    WARN("NCCL_SYMMETRIC is not run: " << reason);
  }
  return result;
}

}  // namespace

TEST_CASE("CUDA NCCL: every pattern and type, the bits of ONESHOT") {
  FCCL_NEED_NCCL();
  CudaRanks cuda(1, ncclConfig());
  INFO(factsOf(cuda).noNccl);
  REQUIRE(factsOf(cuda).noNccl.empty());
  uint64_t seed = 0;
  for (const fcclStrategy_t strategy : strategiesOf(cuda)) {
    for (const fcclFusionPattern_t pattern : allPatterns()) {
      for (const fcclDataType_t dtype : {fcclBfloat16, fcclFloat16, fcclFloat32}) {
        // The last two: rows too long for the kernel that takes a row per block, and rows that begin anywhere.
        for (const auto& [tokens, hidden] : {std::pair<int64_t, int64_t>(1, 64),
                                             {7, 2880},
                                             {3, 8192},
                                             {130, 4096},
                                             {2, 16384},
                                             {2, 32768},
                                             {5, 100}}) {
          if (pattern == fcclPatternResidualRmsNormQuantNvfp4 || pattern == fcclPatternResidualRmsNormOutQuantNvfp4) {
            if (hidden % 16 != 0) continue;
          }
          FusedCase asked;
          asked.pattern = pattern;
          asked.dtype = dtype;
          asked.tokens = tokens;
          asked.hidden = hidden;
          asked.seed = ++seed;
          asked.reducedOut = seed % 3 == 0;
          asked.fp32Weight = seed % 5 == 0;
          asked.weightBias = seed % 7 == 0 ? 1.0f : 0.0f;
          asked.residualInPlace = seed % 2 == 0;
          asked.normInPlace = seed % 4 == 1 && !asked.reducedOut;
          asked.layout = static_cast<fcclScaleLayout_t>(seed % 3);
          asked.strategy = strategy;
          const FusedOutputs byNccl = cuda.run(asked);
          asked.strategy = fcclStrategyOneshot;
          INFO(asked.describe());
          CHECK(byNccl == cuda.run(asked));
        }
      }
    }
  }
}

TEST_CASE("CUDA NCCL: a call in parts that the staging buffer holds") {
  FCCL_NEED_NCCL();
  CudaRanks cuda(1, ncclConfig(1 << 20));
  uint64_t seed = 100;
  for (const fcclStrategy_t strategy : strategiesOf(cuda)) {
    // With normOut NCCL's sums go there in one piece.
    for (const fcclFusionPattern_t pattern :
         {fcclPatternResidualRmsNormQuantNvfp4, fcclPatternResidualRmsNorm, fcclPatternAllReduce}) {
      FusedCase asked;
      asked.pattern = pattern;
      asked.tokens = 70;  // 1.1 MiB
      asked.hidden = 8192;
      asked.seed = ++seed;
      asked.strategy = strategy;
      cuda.run(asked);
    }
  }
}

TEST_CASE("CUDA NCCL: what FCCL has no kernels for goes to NCCL, by AUTO and by name only") {
  FCCL_NEED_NCCL();
  CudaRanks cuda(1, ncclConfig());
  cuda.group().run("types and ops", [&](Rank& rank) {
    RankDevice& device = cuda.device(0);
    constexpr size_t kCount = 1000;
    std::vector<int32_t> data(kCount);
    for (size_t i = 0; i < kCount; i++) data[i] = static_cast<int32_t>(i * 37) - 500;
    device.reset();
    void* const in = device.take(kCount * 8);
    void* const out = device.take(kCount * 8);
    for (const fcclDataType_t dtype : {fcclInt32, fcclFloat64, fcclUint8, fcclFloat32}) {
      const fcclRedOp_t op = dtype == fcclFloat32 ? fcclMax : fcclSum;
      device.upload(in, data.data(), kCount * 4);
      cudaOk(cudaMemsetAsync(out, 0, kCount * 8, device.stream()), "cudaMemsetAsync");
      // The bytes of whatever type: one rank's sum is what it has.
      const size_t count = kCount * 4 / dtypeBytes(dtype);
      rank.ok(fcclAllReduce(in, out, count, dtype, op, rank.comm, device.stream()), dtypeName(dtype));
      std::vector<int32_t> got(kCount);
      device.download(got.data(), out, kCount * 4);
      rank.expect(got == data, dtypeName(dtype));
    }
    rank.expect(device.intact().empty(), device.intact());
  });
  fcclConfig_t oneshot = ncclConfig();
  oneshot.nccl = FCCL_CONFIG_UNDEF_INT;
  CudaRanks without(1, oneshot);
  without.group().run("without NCCL", [&](Rank& rank) {
    void* const data = without.device(0).take(64);
    rank.fails(fcclAllReduce(data, data, 4, fcclInt32, fcclSum, rank.comm, nullptr), fcclInvalidArgument,
               "not on CUDA yet|FCCL_NCCL=1", "int32");
    fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
    args.tokens = 1;
    args.hidden = 16;
    args.input = args.reducedOut = data;
    args.strategy = fcclStrategyNccl;
    rank.fails(fcclAllReduceFused(&args, rank.comm, nullptr), fcclInvalidArgument, "strategy NCCL|FCCL_NCCL=1",
               "by name");
  });
}

TEST_CASE("CUDA NCCL: a call in a graph, replayed") {
  FCCL_NEED_NCCL();
  CudaRanks cuda(1, ncclConfig(1 << 20));
  for (const fcclStrategy_t strategy : strategiesOf(cuda)) {
    for (const fcclFusionPattern_t pattern :
         {fcclPatternResidualRmsNorm, fcclPatternResidualRmsNormQuantNvfp4, fcclPatternAllReduce}) {
      FusedCase asked;
      asked.pattern = pattern;
      asked.tokens = 70;
      asked.hidden = 8192;
      asked.seed = 11 + static_cast<uint64_t>(pattern);
      asked.strategy = strategy;
      FusedProblem problem(asked, 1);
      runFused(cuda.group(), problem, [&](Rank& rank, FusedBuffers& own) {
        RankDevice& device = cuda.device(0);
        device.reset();
        DeviceArgs call(device, problem.asked(), own);
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t executable = nullptr;
        cudaOk(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeThreadLocal), "begin capture");
        const fcclResult_t result = fcclAllReduceFused(&call.args(), rank.comm, device.stream());
        cudaOk(cudaStreamEndCapture(device.stream(), &graph), "end capture");
        if (result != fcclSuccess) return result;
        cudaOk(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
        for (int i = 0; i < 3; i++) cudaOk(cudaGraphLaunch(executable, device.stream()), "cudaGraphLaunch");
        call.fetch();
        cudaOk(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
        cudaOk(cudaGraphDestroy(graph), "cudaGraphDestroy");
        return fcclSuccess;
      });
    }
  }
}

TEST_CASE("CUDA NCCL: what lies in a window is neither staged nor copied back") {
  FCCL_NEED_NCCL();
  CudaRanks cuda(1, ncclConfig());
  if (!factsOf(cuda).noNcclWindow.empty()) FCCL_SKIP("NCCL makes no symmetric windows here");
  constexpr size_t kCount = 1 << 20;
  constexpr size_t kBytes = 2 * kCount;  // above what is staged
  cuda.group().run("copies", [&](Rank& rank) {
    RankDevice& device = cuda.device(0);
    device.reset();
    std::vector<uint16_t> data(kCount);
    for (size_t i = 0; i < kCount; i++) data[i] = static_cast<uint16_t>(0x3f80 + i % 100);
    void* block = nullptr;
    fcclWindow_t window = nullptr;
    rank.ok(fcclMemAllocOn(&block, 2 * kBytes, fcclDeviceCuda), "fcclMemAllocOn");
    rank.ok(fcclCommWindowRegister(rank.comm, block, 2 * kBytes, &window, 0), "fcclCommWindowRegister");
    char* const inWindow = static_cast<char*>(block);
    void* const outside = device.take(2 * kBytes);
    // Copies that a call enqueues, NCCL's own among them: of one rank it copies from input to output.
    const auto copies = [&](void* in, void* out) {
      device.upload(in, data.data(), kBytes);
      cudaOk(cudaMemsetAsync(out, 0, kBytes, device.stream()), "cudaMemsetAsync");
      cudaOk(cudaStreamSynchronize(device.stream()), "cudaStreamSynchronize");
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      cudaOk(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeThreadLocal), "begin capture");
      fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
      args.pattern = fcclPatternAllReduce;
      args.dtype = fcclBfloat16;
      args.tokens = 1;
      args.hidden = kCount;
      args.input = in;
      args.reducedOut = out;
      args.strategy = fcclStrategyNcclSymmetric;
      rank.ok(fcclAllReduceFused(&args, rank.comm, device.stream()), "fcclAllReduceFused");
      cudaOk(cudaStreamEndCapture(device.stream(), &graph), "end capture");
      size_t nodes = 0;
      cudaOk(cudaGraphGetNodes(graph, nullptr, &nodes), "cudaGraphGetNodes");
      std::vector<cudaGraphNode_t> all(nodes);
      cudaOk(cudaGraphGetNodes(graph, all.data(), &nodes), "cudaGraphGetNodes");
      const auto count = std::ranges::count_if(all, [](cudaGraphNode_t node) {
        cudaGraphNodeType type{};
        return cudaGraphNodeGetType(node, &type) == cudaSuccess && type == cudaGraphNodeTypeMemcpy;
      });
      cudaOk(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
      cudaOk(cudaGraphLaunch(executable, device.stream()), "cudaGraphLaunch");
      std::vector<uint16_t> got(kCount);
      device.download(got.data(), out, kBytes);
      rank.expect(got == data, "the sum of one rank");
      cudaOk(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
      cudaOk(cudaGraphDestroy(graph), "cudaGraphDestroy");
      return static_cast<int>(count);
    };
    const auto check = [&](int found, int wanted, const char* what) {
      rank.expect(found == wanted, fmt::format("{}: {} copies, not {}", what, found, wanted));
    };
    check(copies(outside, static_cast<char*>(outside) + kBytes), 2, "outside");
    check(copies(inWindow, inWindow + kBytes), 1, "in a window");
    check(copies(inWindow, outside), 2, "input in a window");
    rank.ok(fcclCommWindowDeregister(rank.comm, window), "fcclCommWindowDeregister");
    check(copies(inWindow, inWindow + kBytes), 2, "no window any more");
    rank.ok(fcclMemFree(block), "fcclMemFree");
    rank.expect(device.intact().empty(), device.intact());
  });
}

TEST_CASE("CUDA NCCL: ranks that share a GPU get no NCCL, and are told so") {
  FCCL_NEED_NCCL();
  CudaRanks cuda(2, ncclConfig());
  CHECK(contains(factsOf(cuda).noNccl, "NCCL refuses ranks that share a GPU, and here up to 2 do"));
  FusedCase asked;
  asked.tokens = 5;
  cuda.run(asked);  // AUTO
  cuda.group().run("by name", [&](Rank& rank) {
    fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
    args.tokens = 1;
    args.hidden = 16;
    args.input = args.reducedOut = cuda.device(rank.rank).take(64);
    for (const fcclStrategy_t strategy : {fcclStrategyNccl, fcclStrategyNcclSymmetric}) {
      args.strategy = strategy;
      rank.fails(fcclAllReduceFused(&args, rank.comm, nullptr), fcclInvalidArgument, "share a GPU", "by name");
    }
  });
}

TEST_CASE("CUDA NCCL: NCCL's own refusal of ranks that share a GPU comes with its words") {
  FCCL_NEED_NCCL();
  BootstrapGroup group = connectRanks(2, newId());
  std::vector<Status> statuses(2);
  group.run("ncclCommInitRank", [&](Bootstrap& bootstrap) {
    const CurrentDevice current(0);
    statuses[static_cast<size_t>(bootstrap.rank())] =
        NcclCommunicator::create(NcclLibrary::find(""), bootstrap).status();
  });
  for (const Status& status : statuses) {
    INFO(status.message());
    CHECK_FALSE(status.ok());
    CHECK(contains(status.message(), "ncclCommInitRank of NCCL 2."));
  }
}

TEST_CASE("CUDA NCCL: abort, and communicators made and given back") {
  FCCL_NEED_NCCL();
  const fcclConfig_t config = ncclConfig(1 << 20);
  for (int i = 0; i < 4; i++) {
    CudaRanks cuda(1, config);
    FusedCase asked;
    asked.strategy = fcclStrategyNccl;
    asked.tokens = 7;
    cuda.run(asked);
    if (i % 2 == 0) continue;
    CHECK(fcclCommAbort(cuda.group().comm(0)) == fcclSuccess);
    cuda.group().forget(0);
  }
}

TEST_CASE("CUDA NCCL: a communicator over the program's own, which goes on being the program's") {
  FCCL_NEED_NCCL();
  const auto library = NcclLibrary::find("").value();
  const NcclLibrary::Functions& f = library->functions();
  nccl::UniqueId id{};
  nccl::Comm own = nullptr;
  cudaOk(cudaSetDevice(0), "cudaSetDevice");
  REQUIRE(f.getUniqueId(&id) == 0);
  REQUIRE(f.commInitRank(&own, 1, id, 0) == 0);
  fcclComm_t comm = nullptr;
  fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
  config.cudaDevice = 77;  // not looked at
  const fcclResult_t made = fcclCommInitNccl(&comm, reinterpret_cast<struct ncclComm*>(own), &config);
  INFO(fcclGetLastError(nullptr));
  REQUIRE(made == fcclSuccess);
  {
    RankDevice device;
    RankGroup group(std::vector<fcclComm_t>{comm});
    const auto onDevice = [&](Rank& rank, FusedBuffers& buffers) {
      device.reset();
      DeviceArgs call(device, buffers.asked(), buffers);
      const fcclResult_t result = fcclAllReduceFused(&call.args(), rank.comm, device.stream());
      if (result == fcclSuccess) call.fetch();
      return result;
    };
    for (const fcclStrategy_t strategy : {fcclStrategyAuto, fcclStrategyNccl}) {
      FusedCase asked;
      asked.pattern = fcclPatternResidualRmsNormOutQuantNvfp4;
      asked.tokens = 33;
      asked.hidden = 2880;
      asked.strategy = strategy;
      runFused(group, asked, onDevice);
    }
    void* const data = device.take(4000);
    cudaOk(cudaMemsetAsync(data, 1, 4000, device.stream()), "cudaMemsetAsync");
    CHECK(fcclAllReduce(data, data, 1000, fcclInt32, fcclSum, comm, device.stream()) == fcclSuccess);
    // Between FCCL's calls, and after its communicator is gone.
    CHECK(f.allReduce(data, data, 1000, fcclInt32, fcclSum, own, device.stream()) == 0);
    int got[1000];
    device.download(got, data, sizeof got);
    CHECK(std::all_of(got, got + 1000, [](int value) { return value == 0x01010101; }));
  }
  RankDevice device(1 << 20);
  CHECK(f.allReduce(device.take(64), device.take(64), 16, fcclFloat32, fcclSum, own, device.stream()) == 0);
  device.synchronize();
  CHECK(f.commDestroy(own) == 0);
}

namespace {

// Microseconds of one of `calls` enqueued one after the other in a graph, the median of its replays.
template <class Enqueue>
double microseconds(cudaStream_t stream, int calls, Enqueue&& enqueue) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cudaOk(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
  for (int i = 0; i < calls; i++) enqueue(i);
  cudaOk(cudaStreamEndCapture(stream, &graph), "end capture");
  cudaOk(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  cudaOk(cudaEventCreate(&begin), "cudaEventCreate");
  cudaOk(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<float> took;
  for (int i = 0; i < 25; i++) {
    cudaOk(cudaEventRecord(begin, stream), "cudaEventRecord");
    cudaOk(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
    cudaOk(cudaEventRecord(end, stream), "cudaEventRecord");
    cudaOk(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    cudaOk(cudaEventElapsedTime(&took.emplace_back(), begin, end), "cudaEventElapsedTime");
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  std::nth_element(took.begin(), took.begin() + 12, took.end());
  return 1000.0 * took[12] / calls;
}

}  // namespace

// Hidden, since it asserts no time: run it by its name.
TEST_CASE("CUDA NCCL: bandwidth of the epilogue against a copy of as many bytes", "[.timing]") {
  FCCL_NEED_GPUS(1);
  constexpr int64_t kHidden = 8192;
  constexpr size_t kFootprint = size_t{512} << 20;  // far beyond the caches
  const RankDevice device(size_t{4} << 30);
  RankDevice& memory = const_cast<RankDevice&>(device);
  cudaOk(cuda::load(false), "load");
  cuda::DeviceFacts facts;
  cudaOk(cuda::readDeviceFacts(0, &facts), "readDeviceFacts");
  void* const state = memory.take(sizeof(cuda::DeviceState));
  cudaOk(cudaMemset(state, 0, sizeof(cuda::DeviceState)), "cudaMemset");
  const cuda::CudaWorld world = cuda::epilogueWorld(static_cast<cuda::DeviceState*>(state), nullptr);
  char* const pool = static_cast<char*>(memory.take(size_t{3} << 30));
  cudaOk(cudaMemset(pool, 0, size_t{3} << 30), "cudaMemset");
  const float one = 1.0f;
  void* const scale = memory.take(4);
  memory.upload(scale, &one, 4);
  void* const weight = memory.take(kHidden * 2);
  cudaOk(cudaMemset(weight, 0, kHidden * 2), "cudaMemset");
  struct Kind {
    const char* name;
    QuantKind quant;
    bool normOut;
    double passes;  // of 2 bytes per element
  };
  std::vector<std::pair<int64_t, int>> shapes;
  for (const int64_t tokens : {1, 16, 64, 128, 256, 512, 1024, 4096}) {
    for (const int packs : {0, 2, 4}) shapes.emplace_back(tokens, packs);  // 0: the planner's
  }
  for (const Kind& kind : {Kind{"RESIDUAL_RMS_NORM", QuantKind::kNone, true, 4},
                           {"+ FP8", QuantKind::kFp8, false, 3.5},
                           {"+ NVFP4", QuantKind::kNvfp4, false, 3.28125}}) {
    for (const auto& [tokens, packs] : shapes) {
      const auto payload = static_cast<size_t>(tokens * kHidden * 2);
      const size_t set = 5 * payload;  // sums, residual, residualOut, normOut, codes with scales
      const int calls = static_cast<int>(std::clamp<size_t>(kFootprint / set, 4, 100));
      RowArgs rows;
      rows.rows = tokens;
      rows.cols = kHidden;
      rows.weight = weight;
      rows.eps = 1e-5f;
      rows.quant = kind.quant;
      rows.quantScale = static_cast<const float*>(scale);
      const auto place = [&](int i) {
        char* at = pool + static_cast<size_t>(i) * set;
        rows.input = at;
        rows.residual = at + payload;
        rows.residualOut = at + 2 * payload;
        rows.normOut = kind.normOut ? at + 3 * payload : nullptr;
        rows.quantOut = kind.quant != QuantKind::kNone ? reinterpret_cast<uint8_t*>(at + 4 * payload) : nullptr;
        rows.scaleOut = kind.quant == QuantKind::kNvfp4 ? rows.quantOut + payload / 2 : nullptr;
      };
      place(0);
      cuda::Launch launch;
      const char* reason = nullptr;
      const cuda::Shape shape = cuda::shapeOf(cuda::Protocol::kOneshot, fcclBfloat16, rows);
      cudaOk(cuda::planEpilogue(facts, world, shape, {.packsPerThread = packs}, &launch, &reason), "planEpilogue");
      const double epilogue = microseconds(memory.stream(), calls, [&](int i) {
        place(i);
        cudaOk(cuda::launchEpilogue(launch, fcclBfloat16, world, rows, 0, tokens, rows.input, memory.stream()),
               "launchEpilogue");
      });
      const double bytes = kind.passes * static_cast<double>(payload);
      const auto half = static_cast<size_t>(bytes / 2);
      const double copy = microseconds(memory.stream(), calls, [&](int i) {
        char* at = pool + static_cast<size_t>(i) * set;
        cudaOk(cudaMemcpyAsync(at + half, at, half, cudaMemcpyDeviceToDevice, memory.stream()), "cudaMemcpyAsync");
      });
      fmt::print(
          "{:>4} tokens {:<17}: {} packs, {} x {} threads, {:7.2f} us, {:5.0f} GB/s; copy {:7.2f} us, {:5.0f} GB/s: "
          "{:.0f} %\n",
          tokens, kind.name, packs, launch.blocks, launch.threads, epilogue, bytes / epilogue / 1e3, copy,
          bytes / copy / 1e3, 100 * copy / epilogue);
    }
  }
}
