// UB on a GPU: buffers in windows, of every pattern, type and alignment; the same bits as without; graphs; waits that
// are given up.
#include <fmt/format.h>

#include <barrier>
#include <chrono>
#include <optional>
#include <regex>
#include <thread>

#include "tests/gpu/replay.h"
#include "tests/support/scoped_variable.h"

using namespace fccl::test;

namespace {

constexpr fcclDataType_t kTypes[] = {fcclBfloat16, fcclFloat16, fcclFloat32};
constexpr size_t kWindow = size_t{4} << 20;
constexpr size_t kHalf = kWindow / 2;

FusedCase caseOf(fcclFusionPattern_t pattern, fcclDataType_t dtype, int64_t tokens, int64_t hidden, uint64_t seed) {
  return fusedCase(pattern, dtype, tokens, hidden, fcclStrategyUb, seed);
}

// The input at `inputAt` of the window, a plain call's output at `outputAt` (where it is in place: there as well).
FusedOutputs runInWindows(CudaRanks& cuda, const CudaWindows& windows, FusedProblem& problem, size_t inputAt = 0,
                          size_t outputAt = kHalf) {
  const FusedCase& asked = problem.asked();
  const size_t bytes = asked.count() * dtypeBytes(asked.dtype);
  return runFused(cuda.group(), problem, [&](Rank& rank, FusedBuffers& own) {
    RankDevice& device = cuda.device(rank.rank);
    device.reset();
    DeviceArgs call(device, asked, own);
    fcclFusedArgs_t args = call.args();
    char* const window = windows.at(rank.rank);
    const Bytes& input = problem.inputs[static_cast<size_t>(rank.rank)];
    device.upload(window + inputAt, input.data(), bytes);
    args.input = window + inputAt;
    const bool plain = !traits(args.pattern).norm;
    const size_t output = asked.reducedInPlace ? inputAt : outputAt;
    if (plain) args.reducedOut = window + output;
    const fcclResult_t result = fcclAllReduceFused(&args, rank.comm, device.stream());
    if (result != fcclSuccess) return result;
    call.fetch();
    if (plain) device.download(own.args.reducedOut, window + output, bytes);
    Bytes after(bytes);
    device.download(after.data(), window + inputAt, bytes);
    rank.expect((plain && asked.reducedInPlace) || after == input, "the input in the window was written to");
    fcclResult_t async = fcclSuccess;
    fcclCommGetAsyncError(rank.comm, &async);
    return async;
  });
}
FusedOutputs runInWindows(CudaRanks& cuda, const CudaWindows& windows, const FusedCase& asked, size_t inputAt = 0) {
  FusedProblem problem(asked, cuda.group().ranks());
  return runInWindows(cuda, windows, problem, inputAt, kHalf + inputAt);
}

// Enqueues an all-reduce in place in the window; the data are not looked at.
fcclResult_t enqueue(CudaRanks& cuda, const CudaWindows& windows, int rank) {
  fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
  args.dtype = fcclFloat32;
  args.tokens = 1;
  args.hidden = 500;
  args.input = args.reducedOut = windows.at(rank);
  args.strategy = fcclStrategyUb;
  return fcclAllReduceFused(&args, cuda.group().comm(rank), cuda.device(rank).stream());
}

fcclResult_t asyncErrorOf(fcclComm_t comm) {
  fcclResult_t async = fcclSuccess;
  const fcclResult_t asked = fcclCommGetAsyncError(comm, &async);
  return asked != fcclSuccess ? asked : async;
}

bool names(const std::string& message, int rank) {
  return std::regex_search(message, std::regex(fmt::format("\\brank {}\\b", rank)));
}

}  // namespace

TEST_CASE("CUDA windows: every pattern and type on 1, 2, 3, 4 and 8 ranks of one GPU, the bits of ONESHOT") {
  FCCL_NEED_GPUS(1);
  uint64_t seed = 0;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    CudaRanks cuda(ranks);
    const CudaWindows windows(cuda, kWindow);
    for (const fcclFusionPattern_t pattern : allPatterns()) {
      for (const fcclDataType_t dtype : kTypes) {
        for (const auto& [tokens, hidden] : {std::pair<int64_t, int64_t>(1, 64), {13, 2880}, {2, 8192}, {40, 96}}) {
          FusedCase asked = caseOf(pattern, dtype, tokens, hidden, ++seed);
          asked.reducedOut = seed % 3 == 0;
          asked.fp32Weight = seed % 5 == 0;
          asked.weightBias = seed % 7 == 0 ? 1.0f : 0.0f;
          asked.layout = static_cast<fcclScaleLayout_t>(seed % 3);
          FusedProblem problem(asked, ranks);
          const FusedOutputs windowed = runInWindows(cuda, windows, problem);
          if (tokens == 13) {
            asked.strategy = fcclStrategyOneshot;
            CHECK(cuda.run(asked) == windowed);
          }
        }
      }
    }
  }
}

TEST_CASE("CUDA windows: rows of any length and buffers at any element of a window") {
  FCCL_NEED_GPUS(1);
  for (const int ranks : {2, 3}) {
    CudaRanks cuda(ranks);
    const CudaWindows windows(cuda, kWindow);
    uint64_t seed = 0;
    for (const fcclDataType_t dtype : kTypes) {
      for (const int64_t hidden : {1, 7, 33, 255, 2881, 16384, 20000}) {
        for (const size_t elements : {0, 1, 3}) {
          for (const fcclFusionPattern_t pattern :
               {fcclPatternAllReduce, fcclPatternRmsNorm, fcclPatternResidualRmsNormOutQuantFp8}) {
            runInWindows(cuda, windows, caseOf(pattern, dtype, 1 + hidden % 5, hidden, ++seed),
                         elements * dtypeBytes(dtype));
          }
        }
      }
      for (const size_t elements : {0, 1}) {
        runInWindows(cuda, windows, caseOf(fcclPatternResidualRmsNormQuantNvfp4, dtype, 5, 48, ++seed),
                     elements * dtypeBytes(dtype));
      }
    }
    // The longest rows there are.
    runInWindows(cuda, windows, caseOf(fcclPatternResidualRmsNorm, fcclBfloat16, 2, 65536, ++seed));
    runInWindows(cuda, windows, caseOf(fcclPatternResidualRmsNorm, fcclBfloat16, 2, 65535, ++seed));
  }
}

TEST_CASE("CUDA windows: windows that begin at other alignments on other ranks") {
  FCCL_NEED_GPUS(1);
  CudaRanks cuda(3);
  for (const size_t skew : {2, 4, 16}) {
    const CudaWindows windows(cuda, kWindow, skew);
    for (const fcclFusionPattern_t pattern : allPatterns()) {
      runInWindows(cuda, windows, caseOf(pattern, skew == 2 ? fcclFloat16 : fcclFloat32, 9, 96, skew));
    }
  }
}

TEST_CASE("CUDA windows: in place, NaN, Inf, -0, both ways to share memory, 16 ranks on one GPU") {
  FCCL_NEED_GPUS(1);
  for (const char* way : {"vmm", "ipc"}) {
    const ScopedVariable variable("FCCL_CUDA_MEMORY", way);
    CudaRanks cuda(2);
    const CudaWindows windows(cuda, kWindow);
    FusedCase asked = caseOf(fcclPatternAllReduce, fcclBfloat16, 22, 96, 5);
    asked.reducedInPlace = true;
    runInWindows(cuda, windows, asked);
    asked.data = DataKind::kSpecial;
    runInWindows(cuda, windows, asked);
    for (const fcclFusionPattern_t pattern : allPatterns()) {
      asked = caseOf(pattern, fcclFloat16, 22, 96, 7);
      asked.data = DataKind::kSpecial;
      asked.residualInPlace = true;
      runInWindows(cuda, windows, asked);
    }
  }
  CudaRanks many(16);
  const CudaWindows windows(many, kWindow);
  for (uint64_t seed = 0; seed < 3; ++seed) {
    runInWindows(many, windows, caseOf(fcclPatternResidualRmsNorm, fcclBfloat16, 17, 2880, seed));
    runInWindows(many, windows, caseOf(fcclPatternAllReduce, fcclBfloat16, 17, 2880, seed));
  }
}

TEST_CASE("CUDA windows: fcclAllReduce of any number of elements, UB standing for AUTO") {
  FCCL_NEED_GPUS(1);
  fcclConfig_t config = cudaConfig();
  config.strategy = fcclStrategyUb;
  for (const int ranks : {2, 5}) {
    CudaRanks cuda(ranks, config);
    const CudaWindows windows(cuda, 2 * kWindow);
    uint64_t seed = 0;
    for (const size_t count : {1, 7, 64, 1000, 100'003, 1'048'576}) {
      for (const size_t outputAt : {size_t{0}, kWindow}) {
        const uint64_t data = ++seed;
        cuda.group().run("all-reduce in windows", [&](Rank& rank) {
          std::vector<Bytes> all;
          std::vector<const void*> at;
          for (int r = 0; r < ranks; ++r) {
            fillPlain(fcclFloat32, all.emplace_back(count * 4).data(), count, data, r);
          }
          for (const Bytes& each : all) at.push_back(each.data());
          RankDevice& device = cuda.device(rank.rank);
          char* const own = windows.at(rank.rank);
          device.upload(own, at[static_cast<size_t>(rank.rank)], count * 4);
          if (!rank.ok(fcclAllReduce(own, own + outputAt, count, fcclFloat32, fcclSum, rank.comm, device.stream()),
                       "fcclAllReduce")) {
            return;
          }
          Bytes sum(count * 4);
          device.download(sum.data(), own + outputAt, sum.size());
          const Bytes expected = referenceAllReduce(fcclFloat32, fcclSum, at, count);
          const std::string wrong = compareAllReduce(fcclFloat32, fcclSum, expected.data(), sum.data(), count);
          rank.expect(wrong.empty(), wrong);
        });
      }
    }
  }
}

TEST_CASE("CUDA windows: what is refused, and what AUTO takes instead") {
  FCCL_NEED_GPUS(1);
  CudaRanks cuda(2);
  const CudaWindows windows(cuda, kWindow);
  cuda.group().run("refused", [&](Rank& rank) {
    RankDevice& device = cuda.device(rank.rank);
    device.reset();
    void* const other = device.take(4096);
    fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
    args.tokens = 1;
    args.hidden = 64;
    args.strategy = fcclStrategyUb;
    args.input = other;
    args.reducedOut = windows.at(rank.rank);
    const auto call = [&] { return fcclAllReduceFused(&args, rank.comm, device.stream()); };
    rank.fails(call(), fcclInvalidArgument, "UB|input|window", "the input in no window");
    args.input = windows.at(rank.rank);
    args.reducedOut = other;
    rank.fails(call(), fcclInvalidArgument, "UB|output|window", "the output in no window");
    args.strategy = fcclStrategyAuto;
    rank.ok(call(), "AUTO");
    args.pattern = fcclPatternRmsNorm;
    args.strategy = fcclStrategyUb;
    args.reducedOut = nullptr;
    args.normOut = windows.at(rank.rank);
    args.weight = other;
    rank.fails(call(), fcclInvalidArgument, "UB|in its place", "a norm in the place of the input");
    args.input = windows.at(rank.rank) + kWindow - 100;
    args.normOut = static_cast<char*>(other) + 2048;
    rank.fails(call(), fcclInvalidArgument, "UB|input|window", "an input that reaches past the window");
    device.synchronize();
  });
  FusedCase asked = caseOf(fcclPatternResidualRmsNorm, fcclBfloat16, 5, 2880, 3);
  FusedProblem problem(asked, 2);
  const FusedOutputs windowed = runInWindows(cuda, windows, problem);
  asked.strategy = fcclStrategyAuto;
  FusedProblem again(asked, 2);
  CHECK(runInWindows(cuda, windows, again) == windowed);
}

TEST_CASE("CUDA windows: registered again, at other places and of other sizes") {
  FCCL_NEED_GPUS(1);
  CudaRanks cuda(2);
  for (uint64_t round = 0; round < 6; ++round) {
    const CudaWindows windows(cuda, kWindow << round % 2);
    runInWindows(cuda, windows, caseOf(fcclPatternAllReduce, fcclBfloat16, 9, 960, round), 16 * round);
    runInWindows(cuda, windows, caseOf(fcclPatternResidualRmsNorm, fcclBfloat16, 9, 960, round), 16 * round);
  }
}

TEST_CASE("CUDA windows: one rank captures what the other calls eagerly") {
  FCCL_NEED_GPUS(1);
  CudaRanks cuda(2);
  const CudaWindows windows(cuda, kWindow);
  constexpr int64_t kCount = 70'000;
  std::barrier together(2);
  cuda.group().run("graph and eager", [&](Rank& rank) {
    RankDevice& device = cuda.device(rank.rank);
    char* const window = windows.at(rank.rank);
    fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
    args.dtype = fcclFloat32;
    args.tokens = 1;
    args.hidden = kCount;
    args.input = window;
    args.reducedOut = window + kHalf;
    args.strategy = fcclStrategyUb;
    const auto call = [&] { rank.ok(fcclAllReduceFused(&args, rank.comm, device.stream()), "call"); };
    std::optional<Replay> replay;
    if (rank.rank == 0) replay.emplace(device.stream(), call);
    for (int round = 0; round < 20; ++round) {
      const std::vector<float> values(kCount, static_cast<float>((rank.rank + 1) * (round + 1)));
      device.upload(window, values.data(), kCount * 4);
      device.synchronize();
      together.arrive_and_wait();
      if (replay) {
        replay->launch();
      } else {
        call();
      }
      device.synchronize();
      together.arrive_and_wait();
      std::vector<float> sums(kCount);
      device.download(sums.data(), window + kHalf, kCount * 4);
      rank.expect(sums == std::vector<float>(kCount, static_cast<float>(3 * (round + 1))), "wrong sum");
    }
  });
}

TEST_CASE("CUDA windows: a rank that stays away is named at the time limit, and later kernels wait for nothing") {
  FCCL_NEED_GPUS(1);
  fcclConfig_t config = cudaConfig();
  config.timeoutMs = 400;
  CudaRanks cuda(3, config);
  CudaWindows windows(cuda, kWindow);
  for (const int r : {0, 2}) {
    // The second is enqueued before anything is known of the failure of the first.
    for (int call = 0; call < 2; ++call) {
      REQUIRE(enqueue(cuda, windows, r) == fcclSuccess);
    }
  }
  for (const int r : {0, 2}) {
    CHECK(cudaStreamSynchronize(cuda.device(r).stream()) == cudaSuccess);
    const fcclComm_t comm = cuda.group().comm(r);
    CHECK(asyncErrorOf(comm) == fcclRemoteError);
    INFO(fcclGetLastError(comm));
    CHECK(names(fcclGetLastError(comm), 1));
    CHECK(enqueue(cuda, windows, r) == fcclRemoteError);
  }
  CHECK(enqueue(cuda, windows, 1) == fcclRemoteError);
  windows.forget();
}

TEST_CASE("CUDA windows: an abort from another thread ends a kernel that waits, and tells the peer") {
  FCCL_NEED_GPUS(1);
  CudaRanks cuda(2);
  {
    CudaWindows windows(cuda, kWindow);
    RankDevice& device = cuda.device(0);
    REQUIRE(enqueue(cuda, windows, 0) == fcclSuccess);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CHECK(cudaStreamQuery(device.stream()) == cudaErrorNotReady);
    std::thread([&] { CHECK(fcclCommAbort(cuda.group().comm(0)) == fcclSuccess); }).join();
    CHECK(cudaStreamSynchronize(device.stream()) == cudaSuccess);
    cuda.group().forget(0);
    const fcclComm_t peer = cuda.group().comm(1);
    CHECK(asyncErrorOf(peer) == fcclRemoteError);
    CHECK(names(fcclGetLastError(peer), 0));
    CHECK(enqueue(cuda, windows, 1) == fcclRemoteError);
    windows.forget();
  }
  // The context is whole.
  CudaRanks fresh(2);
  const CudaWindows windows(fresh, kWindow);
  runInWindows(fresh, windows, caseOf(fcclPatternResidualRmsNorm, fcclBfloat16, 3, 64, 1));
}

TEST_CASE("CUDA windows: one rank on each GPU") {
  FCCL_NEED_GPUS(2);
  const int ranks = gpuCount();
  fcclConfig_t config = cudaConfig();
  config.allowSharedDevice = 0;
  for (const char* way : {"vmm", "ipc"}) {
    const ScopedVariable variable("FCCL_CUDA_MEMORY", way);
    std::vector<fcclComm_t> comms(static_cast<size_t>(ranks));
    REQUIRE(fcclCommInitAll(comms.data(), ranks, &config) == fcclSuccess);
    RankGroup group(comms);
    group.run("one GPU each", [&](Rank& rank) {
      cudaOk(cudaSetDevice(rank.rank), "cudaSetDevice");
      RankDevice device;
      void* block = nullptr;
      fcclWindow_t window = nullptr;
      rank.ok(fcclMemAllocOn(&block, 2 * kWindow, fcclDeviceCuda), "fcclMemAllocOn");
      if (!rank.ok(fcclCommWindowRegister(rank.comm, block, 2 * kWindow, &window, 0), "register")) return;
      fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
      args.dtype = fcclFloat32;
      args.tokens = 1;
      args.strategy = fcclStrategyUb;
      args.input = block;
      args.reducedOut = static_cast<char*>(block) + kWindow;
      for (int round = 0; round < 30; ++round) {
        const size_t count = round % 3 == 0 ? 5 : round % 3 == 1 ? 4096 : 1'000'000;
        const std::vector<float> values(count, static_cast<float>((rank.rank + 1) * (round + 1)));
        device.upload(block, values.data(), count * 4);
        args.hidden = static_cast<int64_t>(count);
        if (!rank.ok(fcclAllReduceFused(&args, rank.comm, device.stream()), "all-reduce")) return;
        std::vector<float> sums(count);
        device.download(sums.data(), args.reducedOut, count * 4);
        const auto wanted = static_cast<float>(ranks * (ranks + 1) / 2 * (round + 1));
        rank.expect(sums == std::vector<float>(count, wanted), "wrong sum");
      }
      rank.ok(fcclCommWindowDeregister(rank.comm, window), "deregister");
      rank.ok(fcclMemFree(block), "fcclMemFree");
    });
  }
}
