// Inputs that kernels push into the peers' slots (fccl_device.h): the bits of the call that sends, whatever surrounds
// it.
#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <cstring>
#include <mutex>

#include "tests/gpu/device_checks.h"
#include "tests/gpu/push_kernels.h"
#include "tests/gpu/replay.h"

using namespace fccl::test;

namespace {

constexpr fcclDataType_t kTypes[] = {fcclBfloat16, fcclFloat16, fcclFloat32};

FusedCase caseOf(fcclFusionPattern_t pattern, fcclDataType_t dtype, int64_t tokens, int64_t hidden, uint64_t seed) {
  return fusedCase(pattern, dtype, tokens, hidden, seed % 2 == 0 ? fcclStrategyAuto : fcclStrategyOneshot, seed);
}

fcclDevicePush_t pushOf(const Rank& rank, const FusedCase& asked) {
  fcclDevicePush_t push = FCCL_DEVICE_PUSH_INITIALIZER;
  rank.ok(fcclDevicePushInit(rank.comm, asked.tokens, asked.hidden, asked.dtype, &push), "fcclDevicePushInit");
  return push;
}

// The buffers of a call on the GPU, whose input is empty until the pushing kernel writes it from `source`.
struct PushedArgs {
  DeviceArgs device;
  fcclFusedArgs_t args;
  void* source;
  fcclDevicePush_t push;

  PushedArgs(RankDevice& memory, const Rank& rank, const FusedProblem& problem, FusedBuffers& own)
      : device(memory, problem.asked(), own), args(device.args()), push(pushOf(rank, problem.asked())) {
    const Bytes& input = problem.inputs[static_cast<size_t>(rank.rank)];
    source = memory.take(input.size());
    memory.upload(source, input.data(), input.size());
    cudaOk(cudaMemsetAsync(inputAt(), 0xee, input.size(), memory.stream()), "cudaMemsetAsync");
    args.inputPushed = 1;
  }
  // The kernel, then the call.
  fcclResult_t enqueue(const Rank& rank, cudaStream_t stream, PushLaunch how = PushLaunch::kPlain) const {
    cudaOk(pushInput(source, inputAt(), push, how, stream), "pushInput");
    return fcclAllReduceFused(&args, rank.comm, stream);
  }

 private:
  void* inputAt() const { return const_cast<void*>(args.input); }
};

// As CudaRanks::run(), the input pushed.
FusedOutputs runPushed(CudaRanks& cuda, FusedProblem& problem) {
  cudaOk(loadPushKernels(), "loadPushKernels");
  return runFused(cuda.group(), problem, [&](Rank& rank, FusedBuffers& own) {
    RankDevice& mine = cuda.device(rank.rank);
    mine.reset();
    PushedArgs call(mine, rank, problem, own);
    const fcclResult_t result = call.enqueue(rank, mine.stream());
    if (result == fcclSuccess) call.device.fetch();
    fcclResult_t async = fcclSuccess;
    fcclCommGetAsyncError(rank.comm, &async);
    return result != fcclSuccess ? result : async;
  });
}

void comparePushed(CudaRanks& cuda, FusedProblem& problem) {
  const FusedOutputs sent = cuda.run(problem);
  const FusedOutputs pushed = runPushed(cuda, problem);
  INFO(problem.asked().describe());
  CHECK(pushed == sent);
}

// Device memory of a peer as this process sees it.
std::vector<uint32_t> wordsAt(RankDevice& device, const char* at, size_t bytes) {
  std::vector<uint32_t> words(bytes / 4);
  device.download(words.data(), at, bytes);
  return words;
}

}  // namespace

TEST_CASE("CUDA push: every pattern and type gives the bits of the call that sends, on 1, 2, 3, 4 and 8 ranks") {
  FCCL_NEED_GPUS(1);
  uint64_t seed = 0;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    CudaRanks cuda(ranks);
    for (const fcclFusionPattern_t pattern : allPatterns()) {
      for (const fcclDataType_t dtype : kTypes) {
        for (const auto& [tokens, hidden] : {std::pair<int64_t, int64_t>(1, 64), {13, 2880}, {2, 8192}}) {
          FusedCase asked = caseOf(pattern, dtype, tokens, hidden, ++seed);
          asked.reducedOut = seed % 3 == 0;
          asked.fp32Weight = seed % 5 == 0;
          asked.layout = static_cast<fcclScaleLayout_t>(seed % 3);
          FusedProblem problem(asked, ranks);
          comparePushed(cuda, problem);
        }
      }
    }
    // Many rows, which blocks take in turn.
    for (const fcclFusionPattern_t pattern : {fcclPatternAllReduce, fcclPatternResidualRmsNormOutQuantNvfp4}) {
      FusedProblem problem(caseOf(pattern, fcclBfloat16, 300, 1024, ++seed), ranks);
      comparePushed(cuda, problem);
    }
  }
}

TEST_CASE("CUDA push: words that look like the sentinel, NaN, Inf and -0") {
  FCCL_NEED_GPUS(1);
  constexpr uint32_t kSentinel = FCCL_PUSH_SENTINEL;  // fp32 -0; in a bf16 or fp16 pair +0 and -0
  for (const int ranks : {2, 3}) {
    CudaRanks cuda(ranks);
    for (const fcclDataType_t dtype : kTypes) {
      for (const fcclFusionPattern_t pattern : {fcclPatternAllReduce, fcclPatternResidualRmsNorm}) {
        FusedProblem problem(caseOf(pattern, dtype, 6, 512, 7), ranks);
        for (int r = 0; r < ranks; ++r) {
          Bytes& input = problem.inputs[static_cast<size_t>(r)];
          // Row 0 everywhere, row 1 of one rank, single words of a pack elsewhere.
          const size_t rowBytes = input.size() / 6;
          for (size_t at = 0; at + 4 <= input.size(); at += 4) {
            const size_t row = at / rowBytes;
            if (row == 0 || (row == 1 && r == 1) || (row > 3 && at / 4 % 7 == static_cast<size_t>(r))) {
              std::memcpy(&input[at], &kSentinel, 4);
            }
          }
        }
        comparePushed(cuda, problem);
        FusedCase special = caseOf(pattern, dtype, 22, 96, 8);
        special.data = DataKind::kSpecial;
        FusedProblem odd(special, ranks);
        // NaN payloads of outputs are compared with the reference, as NaN.
        runPushed(cuda, odd);
      }
    }
  }
}

TEST_CASE("CUDA push: graphs of pushing kernels and calls, replayed with new inputs among eager calls that send") {
  FCCL_NEED_GPUS(1);
  constexpr int kRanks = 2;
  constexpr size_t kInputs = 4;
  CudaRanks cuda(kRanks);
  cudaOk(loadPushKernels(), "loadPushKernels");
  FusedCase captured = caseOf(fcclPatternResidualRmsNorm, fcclBfloat16, 5, 4096, 20);
  FusedCase other = caseOf(fcclPatternResidualRmsNormOutQuantNvfp4, fcclFloat32, 9, 96, 31);
  other.strategy = fcclStrategyTwoshot;
  std::vector<std::unique_ptr<FusedProblem>> problems;
  for (size_t i = 0; i < kInputs; ++i) {
    captured.seed = 100 + i;
    problems.push_back(std::make_unique<FusedProblem>(captured, kRanks));
  }
  FusedProblem eager(other, kRanks);
  std::mutex checking;
  // No copy is under way while a kernel waits for the other rank: on one GPU the ranks' copies stand in one queue.
  std::barrier together(kRanks);
  cuda.group().run("graphs", [&](Rank& rank) {
    RankDevice& device = cuda.device(rank.rank);
    FusedBuffers own(*problems[0], rank.rank, captured.pattern);
    const PushedArgs call(device, rank, *problems[0], own);
    FusedBuffers others(eager, rank.rank, other.pattern);
    DeviceArgs between(device, other, others);
    device.synchronize();
    const Replay replay(device.stream(), [&] {
      for (const PushLaunch how : {PushLaunch::kPlain, PushLaunch::kProgrammatic, PushLaunch::kProgrammatic}) {
        rank.ok(call.enqueue(rank, device.stream(), how), "captured call");
      }
    });
    const size_t bytes = captured.count() * dtypeBytes(captured.dtype);
    for (size_t round = 0; round < 60; ++round) {
      FusedProblem& problem = *problems[round % kInputs];
      device.upload(call.source, problem.inputs[static_cast<size_t>(rank.rank)].data(), bytes);
      device.upload(const_cast<void*>(call.args.residual), problem.residual.data(), bytes);
      device.upload(const_cast<void*>(call.args.weight), problem.weight.data(), problem.weight.size());
      device.synchronize();
      together.arrive_and_wait();
      for (size_t i = 0; i < 1 + round % 4 * 8; ++i) {
        replay.launch();
        if (i % 3 == round % 3) rank.ok(fcclAllReduceFused(&between.args(), rank.comm, device.stream()), "eager call");
      }
      device.synchronize();
      together.arrive_and_wait();
      FusedOutputs outputs;
      outputs.residual.resize(bytes);
      outputs.norm.resize(bytes);
      device.download(outputs.residual.data(), call.args.residualOut, bytes);
      device.download(outputs.norm.data(), call.args.normOut, bytes);
      const std::lock_guard lock(checking);
      const std::string wrong = problem.check(captured.pattern, outputs, outputs.norm);
      rank.expect(wrong.empty(), fmt::format("replay {}: {}", round, wrong));
    }
    between.fetch();
    const std::lock_guard lock(checking);
    const FusedOutputs outputs = others.outputs();
    const std::string wrong = eager.check(other.pattern, outputs, outputs.norm);
    rank.expect(wrong.empty(), "eager: " + wrong);
  });
}

TEST_CASE("CUDA push: calls back to back that push and that send, ONESHOT and TWOSHOT, of ever other sizes") {
  FCCL_NEED_GPUS(1);
  constexpr size_t kCalls = 12;
  constexpr int64_t kMost = 40 * 4096;
  cudaOk(loadPushKernels(), "loadPushKernels");
  cudaOk(loadDeviceChecks(), "loadDeviceChecks");
  for (const int ranks : {2, 4}) {
    CudaRanks cuda(ranks);
    std::barrier together(ranks);
    cuda.group().run("back to back", [&](Rank& rank) {
      RankDevice& device = cuda.device(rank.rank);
      uint32_t numbers[kCalls];
      for (uint32_t k = 0; k < kCalls; ++k) numbers[k] = k;
      auto* calls = static_cast<uint32_t*>(device.take(sizeof(numbers)));
      device.upload(calls, numbers, sizeof(numbers));
      auto* wrong = static_cast<uint32_t*>(device.take(4));
      cudaOk(cudaMemsetAsync(wrong, 0, 4, device.stream()), "cudaMemsetAsync");
      void* const input = device.take(kMost * 2);
      void* outputs[kCalls];
      for (void*& output : outputs) output = device.take(kMost * 2);
      device.synchronize();
      for (size_t round = 0; round < 40; ++round) {
        together.arrive_and_wait();
        for (size_t k = 0; k < kCalls; ++k) {
          const size_t kind = (k * 5 + round * 3 + k * round) % 5;
          fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
          args.tokens = 1 + static_cast<int64_t>((k * 7 + round) % 40);
          args.hidden = k % 3 == 0 ? 4096 : 96;
          args.input = input;
          args.reducedOut = outputs[k];
          const int64_t count = args.tokens * args.hidden;
          if (kind < 3) {
            fcclDevicePush_t push = FCCL_DEVICE_PUSH_INITIALIZER;
            rank.ok(fcclDevicePushInit(rank.comm, args.tokens, args.hidden, args.dtype, &push), "fcclDevicePushInit");
            cudaOk(fillAndPush(input, calls + k, push, kind == 0 ? PushLaunch::kPlain : PushLaunch::kProgrammatic,
                               device.stream()),
                   "fillAndPush");
            args.inputPushed = 1;
          } else {
            cudaOk(fillInput(input, count, rank.rank, calls + k, device.stream()), "fillInput");
            args.strategy = kind == 3 ? fcclStrategyOneshot : fcclStrategyTwoshot;
          }
          rank.ok(fcclAllReduceFused(&args, rank.comm, device.stream()), "a call");
        }
        for (size_t k = 0; k < kCalls; ++k) {
          const int64_t count = (1 + static_cast<int64_t>((k * 7 + round) % 40)) * (k % 3 == 0 ? 4096 : 96);
          cudaOk(checkSum(outputs[k], 0, count, ranks, 0, calls + k, wrong, device.stream()), "checkSum");
        }
        device.synchronize();
      }
      uint32_t count = 1;
      device.download(&count, wrong, 4);
      rank.expect(count == 0, fmt::format("{} sums are wrong", count));
      fcclResult_t async = fcclInProgress;
      rank.ok(fcclCommGetAsyncError(rank.comm, &async), "fcclCommGetAsyncError");
      rank.expect(async == fcclSuccess, fcclGetLastError(rank.comm));
    });
  }
}

TEST_CASE("CUDA push: packs go where the header says, and none once the communicator has given up") {
  FCCL_NEED_GPUS(1);
  cudaOk(loadPushKernels(), "loadPushKernels");
  fcclConfig_t config = cudaConfig();
  config.timeoutMs = 400;
  CudaRanks cuda(2, config);
  constexpr int64_t kTokens = 3;
  constexpr int64_t kHidden = 64;
  constexpr size_t kBytes = kTokens * kHidden * 4;
  fcclDevicePush_t push = FCCL_DEVICE_PUSH_INITIALIZER;
  REQUIRE(fcclDevicePushInit(cuda.group().comm(0), kTokens, kHidden, fcclFloat32, &push) == fcclSuccess);
  CHECK(push.rank == 0);
  CHECK(push.ranks == 2);
  RankDevice& device = cuda.device(0);
  std::vector<uint32_t> data(kBytes / 4);
  for (size_t i = 0; i < data.size(); ++i) data[i] = i % 5 == 0 ? FCCL_PUSH_SENTINEL : static_cast<uint32_t>(i + 1);
  void* const source = device.take(kBytes);
  void* const input = device.take(kBytes);
  device.upload(source, data.data(), kBytes);
  const auto slotsAtPeer = [&] {
    const uint32_t epoch = wordsAt(device, reinterpret_cast<const char*>(push.epoch), 4)[0];
    REQUIRE(epoch < 3);
    return wordsAt(device, push.slots[1] + static_cast<size_t>(epoch) * push.epochBytes, kBytes);
  };
  const std::vector<uint32_t> armed(kBytes / 4, FCCL_PUSH_SENTINEL);
  CHECK(slotsAtPeer() == armed);
  cudaOk(pushInput(source, input, push, PushLaunch::kPlain, device.stream()), "pushInput");
  std::vector<uint32_t> clean = data;
  std::replace(clean.begin(), clean.end(), FCCL_PUSH_SENTINEL, 0u);
  CHECK(slotsAtPeer() == clean);
  CHECK(wordsAt(device, static_cast<const char*>(input), kBytes) == data);

  // Rank 1 stays away.
  fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
  args.dtype = fcclFloat32;
  args.tokens = kTokens;
  args.hidden = kHidden;
  args.input = input;
  args.reducedOut = device.take(kBytes);
  args.inputPushed = 1;
  REQUIRE(fcclAllReduceFused(&args, cuda.group().comm(0), device.stream()) == fcclSuccess);
  device.synchronize();
  fcclResult_t async = fcclSuccess;
  REQUIRE(fcclCommGetAsyncError(cuda.group().comm(0), &async) == fcclSuccess);
  CHECK(async == fcclRemoteError);
  CHECK(slotsAtPeer() == armed);
  cudaOk(pushInput(source, input, push, PushLaunch::kPlain, device.stream()), "pushInput");
  CHECK(slotsAtPeer() == armed);
  CHECK(fcclAllReduceFused(&args, cuda.group().comm(0), device.stream()) == fcclRemoteError);
  CHECK(fcclDevicePushInit(cuda.group().comm(0), kTokens, kHidden, fcclFloat32, &push) == fcclRemoteError);
  CudaRanks fresh(2);
  FusedProblem problem(caseOf(fcclPatternResidualRmsNorm, fcclBfloat16, 4, 4096, 3), 2);
  comparePushed(fresh, problem);
}

TEST_CASE("CUDA push: what cannot be pushed is refused, and the sentence says what to do") {
  FCCL_NEED_GPUS(1);
  cudaOk(loadPushKernels(), "loadPushKernels");
  fcclConfig_t config = cudaConfig();
  config.cudaWorkspaceBytes = 1 << 20;
  config.checkCalls = 1;
  config.strategy = fcclStrategyTwoshot;  // what AUTO stands for in calls that send
  CudaRanks cuda(2, config);
  cuda.group().run("refused", [&](Rank& rank) {
    RankDevice& mine = cuda.device(rank.rank);
    mine.reset();
    fcclDevicePush_t push = FCCL_DEVICE_PUSH_INITIALIZER;
    const auto init = [&](int64_t tokens, int64_t hidden, fcclDataType_t dtype) {
      return fcclDevicePushInit(rank.comm, tokens, hidden, dtype, &push);
    };
    // 2 ranks * 512 KiB are a staging area.
    rank.ok(init(64, 4096, fcclBfloat16), "as much as fits");
    rank.fails(init(65, 4096, fcclBfloat16), fcclInvalidArgument, "65|4096|FCCL_CUDA_WORKSPACE_BYTES", "one row more");
    rank.fails(init(64, 4096, fcclFloat32), fcclInvalidArgument, "fp32|FCCL_CUDA_WORKSPACE_BYTES", "fp32");
    rank.fails(init(INT64_MAX, INT64_MAX / 8 * 8, fcclBfloat16), fcclInvalidArgument, "FCCL_CUDA_WORKSPACE_BYTES",
               "more than there are bytes");
    rank.fails(init(1, 60, fcclBfloat16), fcclInvalidArgument, "hidden|60|16 bytes", "half a pack");
    rank.ok(init(1, 60, fcclFloat32), "whole packs of fp32");
    void* const data = mine.take(2 << 20);
    fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
    args.tokens = 65;
    args.hidden = 4096;
    args.input = data;
    args.reducedOut = data;
    args.inputPushed = 1;
    rank.fails(fcclAllReduceFused(&args, rank.comm, mine.stream()), fcclInvalidArgument,
               "65|4096|FCCL_CUDA_WORKSPACE_BYTES", "a call of several launches");
    args.tokens = 4;
    args.inputPushed = rank.rank;
    rank.fails(fcclAllReduceFused(&args, rank.comm, mine.stream()), fcclInvalidUsage,
               "rank 1 calls|inputPushed|destroy the communicator", "one rank pushes");
    args.inputPushed = 1;
    args.strategy = fcclStrategyMinLatency;
    rank.fails(fcclAllReduceFused(&args, rank.comm, mine.stream()), fcclInvalidArgument,
               "inputPushed|MIN_LATENCY|ONESHOT", "another strategy by name");
  });
  FusedCase asked = caseOf(fcclPatternResidualRmsNorm, fcclBfloat16, 7, 4096, 40);
  asked.strategy = fcclStrategyAuto;
  FusedProblem problem(asked, 2);
  comparePushed(cuda, problem);
}

TEST_CASE("CUDA push: one thread drives four ranks in groups") {
  FCCL_NEED_GPUS(1);
  constexpr int kRanks = 4;
  cudaOk(loadPushKernels(), "loadPushKernels");
  cudaOk(loadDeviceChecks(), "loadDeviceChecks");
  CudaRanks cuda(kRanks);
  fcclDevicePush_t push[kRanks];
  void* buffers[kRanks];
  uint32_t* calls[kRanks];
  uint32_t* wrong[kRanks];
  constexpr int64_t kTokens = 6;
  constexpr int64_t kHidden = 512;
  for (int r = 0; r < kRanks; ++r) {
    RankDevice& device = cuda.device(r);
    push[r] = FCCL_DEVICE_PUSH_INITIALIZER;
    REQUIRE(fcclDevicePushInit(cuda.group().comm(r), kTokens, kHidden, fcclBfloat16, &push[r]) == fcclSuccess);
    buffers[r] = device.take(kTokens * kHidden * 2);
    calls[r] = static_cast<uint32_t*>(device.take(4));
    wrong[r] = static_cast<uint32_t*>(device.take(4));
    cudaOk(cudaMemsetAsync(calls[r], 0, 4, device.stream()), "cudaMemsetAsync");
    cudaOk(cudaMemsetAsync(wrong[r], 0, 4, device.stream()), "cudaMemsetAsync");
    device.synchronize();
  }
  for (int round = 0; round < 50; ++round) {
    REQUIRE(fcclGroupStart() == fcclSuccess);
    for (int r = 0; r < kRanks; ++r) {
      cudaOk(fillAndPush(buffers[r], calls[r], push[r], PushLaunch::kProgrammatic, cuda.device(r).stream()),
             "fillAndPush");
      fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
      args.tokens = kTokens;
      args.hidden = kHidden;
      args.input = buffers[r];
      args.reducedOut = buffers[r];
      args.inputPushed = 1;
      REQUIRE(fcclAllReduceFused(&args, cuda.group().comm(r), cuda.device(r).stream()) == fcclSuccess);
    }
    REQUIRE(fcclGroupEnd() == fcclSuccess);
    for (int r = 0; r < kRanks; ++r) {
      cudaOk(checkSum(buffers[r], 0, kTokens * kHidden, kRanks, 0, calls[r], wrong[r], cuda.device(r).stream()),
             "checkSum");
      cudaOk(nextCall(calls[r], cuda.device(r).stream()), "nextCall");
    }
  }
  for (int r = 0; r < kRanks; ++r) {
    uint32_t count = 1;
    cuda.device(r).download(&count, wrong[r], 4);
    CHECK(count == 0);
  }
}

TEST_CASE("CUDA push: one rank on each GPU") {
  FCCL_NEED_GPUS(2);
  const int ranks = gpuCount();
  fcclConfig_t config = cudaConfig();
  config.allowSharedDevice = 0;
  std::vector<fcclComm_t> comms(static_cast<size_t>(ranks));
  REQUIRE(fcclCommInitAll(comms.data(), ranks, &config) == fcclSuccess);
  RankGroup group(comms);
  constexpr int64_t kTokens = 32;
  constexpr int64_t kHidden = 4096;
  group.run("one GPU each", [&](Rank& rank) {
    cudaOk(cudaSetDevice(rank.rank), "cudaSetDevice");
    cudaOk(loadPushKernels(), "loadPushKernels");
    cudaOk(loadDeviceChecks(), "loadDeviceChecks");
    RankDevice device;
    FusedCase asked = caseOf(fcclPatternAllReduce, fcclBfloat16, kTokens, kHidden, 1);
    const fcclDevicePush_t push = pushOf(rank, asked);
    void* const input = device.take(kTokens * kHidden * 2);
    void* const output = device.take(kTokens * kHidden * 2);
    auto* call = static_cast<uint32_t*>(device.take(4));
    auto* wrong = static_cast<uint32_t*>(device.take(4));
    cudaOk(cudaMemsetAsync(call, 0, 4, device.stream()), "cudaMemsetAsync");
    cudaOk(cudaMemsetAsync(wrong, 0, 4, device.stream()), "cudaMemsetAsync");
    for (int round = 0; round < 500; ++round) {
      cudaOk(fillAndPush(input, call, push, PushLaunch::kProgrammatic, device.stream()), "fillAndPush");
      fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
      args.tokens = kTokens;
      args.hidden = kHidden;
      args.input = input;
      args.reducedOut = output;
      args.inputPushed = 1;
      rank.ok(fcclAllReduceFused(&args, rank.comm, device.stream()), "a call");
      cudaOk(checkSum(output, 0, kTokens * kHidden, ranks, 0, call, wrong, device.stream()), "checkSum");
      cudaOk(nextCall(call, device.stream()), "nextCall");
    }
    uint32_t count = 1;
    device.download(&count, wrong, 4);
    rank.expect(count == 0, fmt::format("{} sums are wrong", count));
  });
}
