// Ranks on a GPU that abort, die or stay away: the kernels of all others end, an error names the rank, and the GPU goes
// on working for them.
#include <fmt/format.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <regex>
#include <thread>

#include "tests/gpu/device_ranks.h"
#include "tests/support/process_ranks.h"

using namespace fccl::test;

namespace {

using Clock = std::chrono::steady_clock;

bool names(const std::string& message, int rank) {
  return std::regex_search(message, std::regex(fmt::format("\\brank {}\\b", rank)));
}

fcclResult_t asyncErrorOf(fcclComm_t comm) {
  fcclResult_t async = fcclSuccess;
  const fcclResult_t asked = fcclCommGetAsyncError(comm, &async);
  return asked != fcclSuccess ? asked : async;
}

// Enqueues an all-reduce of a few elements; the buffer is not looked at.
fcclResult_t enqueue(RankDevice& device, fcclComm_t comm, void* data) {
  return fcclAllReduce(data, data, 500, fcclFloat32, fcclSum, comm, device.stream());
}

}  // namespace

TEST_CASE("CUDA faults: fcclCommAbort from another thread ends a kernel that waits, and tells the peer") {
  FCCL_NEED_GPUS(1);
  CudaRanks cuda(2);
  RankDevice& device = cuda.device(0);
  void* const data = device.take(4096);
  REQUIRE(enqueue(device, cuda.group().comm(0), data) == fcclSuccess);
  std::this_thread::sleep_for(Milliseconds(50));
  CHECK(cudaStreamQuery(device.stream()) == cudaErrorNotReady);
  const auto begin = Clock::now();
  std::thread([&] { CHECK(fcclCommAbort(cuda.group().comm(0)) == fcclSuccess); }).join();
  CHECK(Clock::now() - begin < Seconds(1));
  CHECK(cudaStreamSynchronize(device.stream()) == cudaSuccess);
  cuda.group().forget(0);
  const fcclComm_t peer = cuda.group().comm(1);
  CHECK(asyncErrorOf(peer) == fcclRemoteError);
  INFO(fcclGetLastError(peer));
  CHECK(names(fcclGetLastError(peer), 0));
  CHECK(enqueue(cuda.device(1), peer, data) == fcclRemoteError);
  // The context is whole.
  CudaRanks fresh(2);
  fresh.run(FusedCase{});
}

TEST_CASE("CUDA faults: a rank that stays away is named at the time limit") {
  FCCL_NEED_GPUS(1);
  fcclConfig_t config = cudaConfig();
  config.timeoutMs = 400;
  CudaRanks cuda(3, config);
  for (const int r : {0, 2}) {
    RankDevice& device = cuda.device(r);
    REQUIRE(enqueue(device, cuda.group().comm(r), device.take(4096)) == fcclSuccess);
  }
  for (const int r : {0, 2}) {
    CHECK(cudaStreamSynchronize(cuda.device(r).stream()) == cudaSuccess);
    const fcclComm_t comm = cuda.group().comm(r);
    CHECK(asyncErrorOf(comm) == fcclRemoteError);
    INFO(fcclGetLastError(comm));
    CHECK(names(fcclGetLastError(comm), 1));
    CHECK(std::string(fcclGetLastError(comm)).find("FCCL_TIMEOUT_MS") != std::string::npos);
    CHECK(enqueue(cuda.device(r), comm, cuda.device(r).take(4096)) == fcclRemoteError);
  }
  // The late rank is told as well, and does not wait.
  CHECK(enqueue(cuda.device(1), cuda.group().comm(1), cuda.device(1).take(4096)) == fcclRemoteError);
  CudaRanks fresh(3);
  fresh.run(FusedCase{});
}

TEST_CASE("CUDA faults: ranks destroy in any order, at any time") {
  FCCL_NEED_GPUS(1);
  for (const int first : {0, 1, 2}) {
    CudaRanks cuda(3);
    cuda.run(FusedCase{});
    REQUIRE(fcclCommDestroy(cuda.group().comm(first)) == fcclSuccess);
    cuda.group().forget(first);
    std::this_thread::sleep_for(Milliseconds(120));  // the others look after themselves meanwhile
    for (int r = 0; r < 3; ++r) {
      if (r != first) CHECK(asyncErrorOf(cuda.group().comm(r)) == fcclSuccess);
    }
    // Who calls all the same learns that nobody is there.
    const int other = (first + 1) % 3;
    RankDevice& device = cuda.device(other);
    CHECK(enqueue(device, cuda.group().comm(other), device.take(4096)) == fcclRemoteError);
    CHECK(names(fcclGetLastError(cuda.group().comm(other)), first));
  }
}

namespace {

// Collectives without end, until one fails; then what it says, whether the GPU still works, and out.
const RankProgram kCudaStream("cuda-stream", [](RankProcess& self) {
  const fcclConfig_t config = cudaConfig();
  fcclComm_t comm = self.init(&config);
  void* windowed = nullptr;
  try {
    RankDevice device;
    const size_t count = self.argument == "large" ? 1'000'000 : 500;
    void* data = device.take(4 << 20);
    fcclWindow_t window = nullptr;
    fcclResult_t result = fcclSuccess;
    if (self.argument == "window") {
      result = fcclMemAllocOn(&windowed, 4 << 20, fcclDeviceCuda);
      if (result == fcclSuccess) result = fcclCommWindowRegister(comm, windowed, 4 << 20, &window, 0);
      data = windowed;
    }
    fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
    args.dtype = fcclFloat32;
    args.tokens = 1;
    args.hidden = static_cast<int64_t>(count);
    args.input = args.reducedOut = data;
    if (window != nullptr) args.strategy = fcclStrategyUb;
    self.send("ready");
    for (int call = 0; result == fcclSuccess; ++call) {
      result = fcclAllReduceFused(&args, comm, device.stream());
      if (result == fcclSuccess && call % 8 == 7) {
        device.synchronize();
        result = asyncErrorOf(comm);
      }
    }
    const std::string sentence = fcclGetLastError(comm);
    device.synchronize();
    self.send(fmt::format("failed {} {}", static_cast<int>(result), sentence));
    fcclComm_t alone = nullptr;
    fcclUniqueId id;
    bool works = fcclGetUniqueId(&id) == fcclSuccess && fcclCommInit(&alone, 1, id, 0, &config) == fcclSuccess;
    works = works && allReduceOnDevice(device, alone, 0, 1, fcclFloat32, 1000, 1).empty();
    works = works && fcclCommDestroy(alone) == fcclSuccess;
    self.send(works ? "works" : fmt::format("broken {}", fcclGetLastError(nullptr)));
  } catch (const std::exception& error) {
    self.send(fmt::format("broken {}", error.what()));
  }
  const bool left = fcclCommDestroy(comm) == fcclSuccess;
  return left && fcclMemFree(windowed) == fcclSuccess ? 0 : 1;
});

void killInStream(int ranks, int victim, const std::string& kind, const Environment& environment) {
  INFO(kind << ", rank " << victim << " of " << ranks << " killed");
  const auto before = fcclNames();
  ProcessRanks processes("cuda-stream", ranks, environment, kind);
  processes.relayId();
  processes.expectAll("ready", Milliseconds(60'000));
  std::this_thread::sleep_for(Milliseconds(80));
  const auto killed = Clock::now();
  processes.signal(victim, SIGKILL);
  for (int r = 0; r < ranks; ++r) {
    if (r == victim) continue;
    const RankResult result = processes.expectResult(r, "failed", Milliseconds(20'000));
    const Seconds took = Clock::now() - killed;
    INFO("rank " << r << " after " << took.count() << " s: " << result.message);
    CHECK(result.result == fcclRemoteError);
    CHECK(names(result.message, victim));
    CHECK(took < Seconds(2) * slowness());
    processes.expect(r, "works", Milliseconds(60'000));
    processes.expectExit(r);
  }
  CHECK(fcclLeftovers(before).empty());
}

}  // namespace

TEST_CASE("CUDA processes: SIGKILL of one ends the kernels of all others, which can go on using the GPU") {
  FCCL_NEED_GPUS(1);
  killInStream(2, 1, "small", {{"FCCL_CUDA_MEMORY", "vmm"}});
  killInStream(2, 0, "large", {{"FCCL_CUDA_MEMORY", "ipc"}});
  killInStream(4, 2, "small", {});
  killInStream(2, 1, "window", {{"FCCL_CUDA_MEMORY", "vmm"}});
  killInStream(3, 0, "window", {{"FCCL_CUDA_MEMORY", "ipc"}});
}

TEST_CASE("CUDA processes: a stopped one is named at the time limit, and told once it goes on") {
  FCCL_NEED_GPUS(1);
  ProcessRanks processes("cuda-stream", 3, {{"FCCL_TIMEOUT_MS", "1500"}}, "small");
  processes.relayId();
  processes.expectAll("ready", Milliseconds(60'000));
  std::this_thread::sleep_for(Milliseconds(80));
  processes.signal(2, SIGSTOP);
  for (const int r : {0, 1}) {
    const RankResult result = processes.expectResult(r, "failed", Milliseconds(20'000));
    INFO(result.message);
    CHECK(result.result == fcclRemoteError);
    CHECK(names(result.message, 2));
  }
  processes.signal(2, SIGCONT);
  const RankResult late = processes.expectResult(2, "failed", Milliseconds(20'000));
  INFO(late.message);
  CHECK(late.result == fcclRemoteError);
  for (int r = 0; r < 3; ++r) processes.expect(r, "works", Milliseconds(60'000));
  processes.expectAllExit();
}

TEST_CASE("CUDA faults: a capture that fails leaves the communicator as it was") {
  FCCL_NEED_GPUS(1);
  CudaRanks cuda(2);
  for (int r = 0; r < 2; ++r) {
    RankDevice& device = cuda.device(r);
    void* const data = device.take(4096);
    REQUIRE(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeGlobal) == cudaSuccess);
    void* forbidden = nullptr;
    CHECK(cudaMalloc(&forbidden, 64) != cudaSuccess);
    CHECK(enqueue(device, cuda.group().comm(r), data) == fcclUnhandledCudaError);
    const std::string sentence = fcclGetLastError(cuda.group().comm(r));
    INFO(sentence);
    CHECK(sentence.find("capture") != std::string::npos);
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(device.stream(), &graph) != cudaSuccess);
    (void)cudaGetLastError();
  }
  cuda.run(FusedCase{});
}

TEST_CASE(
    "CUDA faults: a launch that fails in the middle of a call ends the communicator, one that fails alone does not") {
  FCCL_NEED_GPUS(1);
  fcclConfig_t config = cudaConfig();
  config.cudaWorkspaceBytes = 1 << 20;
  CudaRanks cuda(2, config);
  const auto refused = [&](Rank& rank, size_t count) {
    RankDevice& device = cuda.device(rank.rank);
    device.reset();
    void* data = device.take(count * 4);
    cudaStream_t stream = nullptr;
    cudaOk(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    cudaOk(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    rank.expect(cudaStreamSynchronize(stream) != cudaSuccess, "the capture went on");  // and so it is invalid now
    (void)cudaGetLastError();
    const fcclResult_t result = fcclAllReduce(data, data, count, fcclFloat32, fcclSum, rank.comm, stream);
    rank.expect(result != fcclSuccess, "a launch into an invalid capture succeeded");
    cudaGraph_t graph = nullptr;
    rank.expect(cudaStreamEndCapture(stream, &graph) != cudaSuccess, "the capture was valid");
    (void)cudaGetLastError();
    cudaOk(cudaStreamDestroy(stream), "cudaStreamDestroy");
  };
  cuda.group().run("one launch", [&](Rank& rank) {
    refused(rank, 1000);
    const std::string wrong = allReduceOnDevice(cuda.device(rank.rank), rank.comm, rank.rank, 2, fcclFloat32, 1000, 3);
    rank.expect(wrong.empty(), wrong);
  });
  cuda.group().run("several", [&](Rank& rank) {
    refused(rank, 4 << 20);
    rank.expect(std::string(fcclGetLastError(rank.comm)).find("part of") != std::string::npos,
                fcclGetLastError(rank.comm));
    RankDevice& device = cuda.device(rank.rank);
    void* data = device.take(4000);
    rank.expect(fcclAllReduce(data, data, 1000, fcclFloat32, fcclSum, rank.comm, device.stream()) != fcclSuccess,
                "a later call was taken");
  });
}
