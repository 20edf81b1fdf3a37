// What a call does on its stream, and what it does not: kernels before and after it, other streams, a busy GPU, memory
// of every kind.
#include <fmt/format.h>

#include <barrier>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>

#include "tests/gpu/device_checks.h"
#include "tests/gpu/replay.h"

using namespace fccl::test;

namespace {

constexpr int64_t kHidden = 4096;
constexpr int64_t kMostTokens = 64;

// Buffers of one rank for bf16 calls of at most [kMostTokens, kHidden].
struct Buffers {
  void *input, *sum, *norm, *weight;
  uint32_t *call, *wrong;

  explicit Buffers(RankDevice& device) {
    constexpr size_t kBytes = kMostTokens * kHidden * 2;
    device.reset();
    for (void** buffer : {&input, &sum, &norm, &weight}) *buffer = device.take(kBytes);
    call = static_cast<uint32_t*>(device.take(4));
    wrong = static_cast<uint32_t*>(device.take(4));
    const std::vector<uint16_t> nan(kMostTokens * kHidden, 0x7fff);
    const std::vector<uint16_t> ones(kHidden, 0x3f80);
    const uint32_t zero = 0;
    device.upload(norm, nan.data(), kBytes);
    device.upload(weight, ones.data(), ones.size() * 2);
    device.upload(call, &zero, 4);
    device.upload(wrong, &zero, 4);
    device.synchronize();
  }

  fcclFusedArgs_t args(int64_t tokens) const {
    fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
    args.pattern = fcclPatternRmsNorm;
    args.tokens = tokens;
    args.hidden = kHidden;
    args.input = input;
    args.weight = weight;
    args.reducedOut = sum;
    args.normOut = norm;
    return args;
  }
};

void expectNoneWrong(const Rank& rank, RankDevice& device, const Buffers& own) {
  device.synchronize();
  uint32_t wrong = 0;
  device.download(&wrong, own.wrong, 4);
  rank.expect(wrong == 0, fmt::format("{} elements are wrong", wrong));
}

// Neighbours in the stream that begin before, and go on after, a kernel of theirs allows.
void betweenEagerNeighbours(int rounds) {
  CudaRanks cuda(2);
  cudaOk(loadDeviceChecks(), "loadDeviceChecks");
  std::barrier together(2);
  cuda.group().run(
      "neighbours",
      [&](Rank& rank) {
        RankDevice& device = cuda.device(rank.rank);
        const Buffers own(device);
        together.arrive_and_wait();
        for (int round = 0; round < rounds; ++round) {
          fcclFusedArgs_t args = own.args(1 + round % 8);
          args.strategy = round / 8 % 2 == 0 ? fcclStrategyOneshot : fcclStrategyTwoshot;
          const int64_t count = args.tokens * kHidden;
          cudaOk(fillInputLate(own.input, count, rank.rank, own.call, device.stream()), "fillInputLate");
          rank.ok(fcclAllReduceFused(&args, rank.comm, device.stream()), "call");
          cudaOk(checkSumEarly(own.sum, own.norm, count, 2, own.call, own.wrong, device.stream()), "checkSumEarly");
          cudaOk(nextCall(own.call, device.stream()), "nextCall");
        }
        expectNoneWrong(rank, device, own);
      },
      Seconds(100));
}

}  // namespace

TEST_CASE("CUDA streams: kernels before and after a call that use programmatic launches") {
  FCCL_NEED_GPUS(1);
  betweenEagerNeighbours(500);
}

TEST_CASE("CUDA soak: ten thousand calls between kernels that use programmatic launches", "[.soak]") {
  FCCL_NEED_GPUS(1);
  betweenEagerNeighbours(10'000);
}

TEST_CASE("CUDA streams: inputs from another stream, outputs to a third, ordered by events") {
  FCCL_NEED_GPUS(1);
  CudaRanks cuda(2);
  cudaOk(loadDeviceChecks(), "loadDeviceChecks");
  std::barrier together(2);
  cuda.group().run("three streams", [&](Rank& rank) {
    RankDevice& device = cuda.device(rank.rank);
    const Buffers own(device);
    cudaStream_t before = nullptr;
    cudaStream_t after = nullptr;
    cudaEvent_t filled = nullptr;
    cudaEvent_t called = nullptr;
    cudaEvent_t checked = nullptr;
    for (cudaStream_t* stream : {&before, &after}) {
      cudaOk(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    }
    for (cudaEvent_t* event : {&filled, &called, &checked}) {
      cudaOk(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    }
    together.arrive_and_wait();
    for (int round = 0; round < 200; ++round) {
      const fcclFusedArgs_t args = own.args(1 + round % kMostTokens);
      const int64_t count = args.tokens * kHidden;
      cudaOk(cudaStreamWaitEvent(before, checked, 0), "cudaStreamWaitEvent");
      cudaOk(fillInput(own.input, count, rank.rank, own.call, before), "fillInput");
      cudaOk(cudaEventRecord(filled, before), "cudaEventRecord");
      cudaOk(cudaStreamWaitEvent(device.stream(), filled, 0), "cudaStreamWaitEvent");
      rank.ok(fcclAllReduceFused(&args, rank.comm, device.stream()), "call");
      cudaOk(cudaEventRecord(called, device.stream()), "cudaEventRecord");
      cudaOk(cudaStreamWaitEvent(after, called, 0), "cudaStreamWaitEvent");
      cudaOk(checkSumEarly(own.sum, own.norm, count, 2, own.call, own.wrong, after), "checkSumEarly");
      cudaOk(nextCall(own.call, after), "nextCall");
      cudaOk(cudaEventRecord(checked, after), "cudaEventRecord");
    }
    cudaOk(cudaStreamSynchronize(after), "cudaStreamSynchronize");
    expectNoneWrong(rank, device, own);
    together.arrive_and_wait();
    for (cudaStream_t stream : {before, after}) cudaOk(cudaStreamDestroy(stream), "cudaStreamDestroy");
    for (cudaEvent_t event : {filled, called, checked}) cudaOk(cudaEventDestroy(event), "cudaEventDestroy");
  });
}

namespace {

// One call of every rank, after `before`, which no rank enters until all are ready to call.
void callAfter(CudaRanks& cuda, const FusedCase& asked, const std::function<void(Rank&)>& before) {
  FusedProblem problem(asked, cuda.group().ranks());
  std::barrier<> together(cuda.group().ranks());
  runFused(cuda.group(), problem, [&](Rank& rank, FusedBuffers& own) {
    RankDevice& device = cuda.device(rank.rank);
    device.reset();
    DeviceArgs call(device, asked, own);
    device.synchronize();
    together.arrive_and_wait();
    before(rank);
    const fcclResult_t result = fcclAllReduceFused(&call.args(), rank.comm, device.stream());
    device.synchronize();
    together.arrive_and_wait();
    fcclResult_t async = fcclSuccess;
    rank.ok(fcclCommGetAsyncError(rank.comm, &async), "fcclCommGetAsyncError");
    rank.ok(async, "the asynchronous error");
    call.fetch();
    return result;
  });
}

}  // namespace

TEST_CASE("CUDA streams: a GPU on which all but four multiprocessors are taken") {
  FCCL_NEED_GPUS(1);
  CudaRanks cuda(2);
  RankDevice other;
  cudaOk(loadDeviceChecks(), "loadDeviceChecks");
  for (const fcclStrategy_t strategy : {fcclStrategyOneshot, fcclStrategyTwoshot}) {
    FusedCase asked;
    asked.tokens = 512;
    asked.hidden = 2048;
    asked.strategy = strategy;
    std::barrier<> taken(2);
    callAfter(cuda, asked, [&](Rank& rank) {
      if (rank.rank == 0) cudaOk(occupy(4, 500, other.stream()), "occupy");
      taken.arrive_and_wait();
    });
    other.synchronize();
  }
}

TEST_CASE("CUDA streams: a kernel of the rank that the others wait for finds room beside them") {
  FCCL_NEED_GPUS(1);
  cudaOk(loadDeviceChecks(), "loadDeviceChecks");
  for (const int ranks : {2, 3, 8}) {
    CudaRanks cuda(ranks);
    for (const fcclFusionPattern_t pattern : {fcclPatternResidualRmsNorm, fcclPatternResidualRmsNormOutQuantNvfp4}) {
      for (const int64_t hidden : {64, 1024, 2880, 8192}) {
        FusedCase asked;
        asked.pattern = pattern;
        asked.tokens = 500;
        asked.hidden = hidden;
        callAfter(cuda, asked, [&](Rank& rank) {
          if (rank.rank != ranks - 1) return;
          std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the others' kernels wait by then
          cudaOk(takeQuarter(cuda.device(rank.rank).stream()), "takeQuarter");
        });
      }
    }
  }
}

namespace {

constexpr size_t kElements = 3000;
constexpr size_t kPlace = 1024;  // bytes into the block where the buffer begins

struct Kind {
  const char* name;
  cudaError_t (*allocate)(void** block, size_t bytes);
  cudaError_t (*release)(void* block);
};

const Kind kKinds[] = {
    {"cudaMalloc", [](void** b, size_t n) { return cudaMalloc(b, n); }, [](void* b) { return cudaFree(b); }},
    {"cudaMallocAsync", [](void** b, size_t n) { return cudaMallocAsync(b, n, cudaStreamPerThread); },
     [](void* b) { return cudaFreeAsync(b, cudaStreamPerThread); }},
    {"cudaMallocManaged", [](void** b, size_t n) { return cudaMallocManaged(b, n); },
     [](void* b) { return cudaFree(b); }},
    {"cudaHostAlloc", [](void** b, size_t n) { return cudaHostAlloc(b, n, cudaHostAllocMapped); },
     [](void* b) { return cudaFreeHost(b); }},
    {"fcclMemAllocOn (virtual memory)",
     [](void** b, size_t n) {
       return fcclMemAllocOn(b, n, fcclDeviceCuda) == fcclSuccess ? cudaSuccess : cudaErrorMemoryAllocation;
     },
     [](void* b) { return fcclMemFree(b) == fcclSuccess ? cudaSuccess : cudaErrorInvalidValue; }}};

}  // namespace

TEST_CASE("CUDA streams: buffers of every kind of memory that a GPU reaches, eager and captured") {
  FCCL_NEED_GPUS(1);
  CudaRanks cuda(2);
  for (const Kind& kind : kKinds) {
    INFO(kind.name);
    constexpr size_t kBytes = kPlace + kElements * sizeof(float);
    std::vector<void*> blocks(4);
    for (void*& block : blocks) REQUIRE(kind.allocate(&block, kBytes) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    const auto bufferOf = [&](int rank, size_t which) {
      return reinterpret_cast<float*>(static_cast<char*>(blocks[static_cast<size_t>(rank) * 2 + which]) + kPlace);
    };
    std::barrier together(2);
    for (const bool captured : {false, true}) {
      cuda.group().run(kind.name, [&](Rank& rank) {
        RankDevice& device = cuda.device(rank.rank);
        float* const input = bufferOf(rank.rank, 0);
        float* const output = bufferOf(rank.rank, 1);
        std::vector<float> values(kElements);
        for (size_t i = 0; i < kElements; ++i) values[i] = static_cast<float>((i + captured) * (rank.rank + 1));
        cudaOk(cudaMemcpyAsync(input, values.data(), kElements * 4, cudaMemcpyDefault, device.stream()), "input");
        device.synchronize();
        const auto call = [&] {
          rank.ok(fcclAllReduce(input, output, kElements, fcclFloat32, fcclSum, rank.comm, device.stream()), "call");
        };
        std::optional<Replay> replay;
        if (captured) replay.emplace(device.stream(), call);
        together.arrive_and_wait();
        if (replay) {
          replay->launch();
        } else {
          call();
        }
        device.synchronize();
        together.arrive_and_wait();
        cudaOk(cudaMemcpyAsync(values.data(), output, kElements * 4, cudaMemcpyDefault, device.stream()), "output");
        device.synchronize();
        for (size_t i = 0; i < kElements; ++i) {
          if (values[i] == static_cast<float>((i + captured) * 3)) continue;
          return rank.expect(false, fmt::format("element {} is {}", i, values[i]));
        }
      });
    }
    for (void* block : blocks) CHECK(kind.release(block) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  }
}
