// Ranks as processes that share a GPU or have one each: plain and fused collectives, eager and captured.
#include <fmt/format.h>

#include <cstdlib>

#include "tests/gpu/device_ranks.h"
#include "tests/support/process_ranks.h"

using namespace fccl::test;

namespace {

// Empty, or what the asynchronous error of the communicator says.
std::string asyncErrorOf(fcclComm_t comm) {
  fcclResult_t async = fcclSuccess;
  const fcclResult_t asked = fcclCommGetAsyncError(comm, &async);
  return asked == fcclSuccess && async == fcclSuccess ? "" : fcclGetLastError(comm);
}

std::string plainCollectives(const RankProcess& self, fcclComm_t comm, RankDevice& device) {
  uint64_t seed = 0;
  for (const size_t count : {size_t{1}, size_t{1000}, size_t{100'003}}) {
    for (const fcclDataType_t dtype : {fcclBfloat16, fcclFloat32}) {
      std::string wrong = allReduceOnDevice(device, comm, self.rank, self.ranks, dtype, count, ++seed);
      if (!wrong.empty()) return wrong;
    }
  }
  return asyncErrorOf(comm);
}

// The call once, or captured and replayed twice.
std::string callOnce(RankDevice& device, fcclComm_t comm, const fcclFusedArgs_t& args, bool captured) {
  device.synchronize();
  if (!captured) {
    return fcclAllReduceFused(&args, comm, device.stream()) == fcclSuccess ? "" : fcclGetLastError(comm);
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  cudaOk(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  const fcclResult_t result = fcclAllReduceFused(&args, comm, device.stream());
  cudaOk(cudaStreamEndCapture(device.stream(), &graph), "cudaStreamEndCapture");
  if (result != fcclSuccess) return fcclGetLastError(comm);
  cudaOk(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");
  cudaOk(cudaGraphDestroy(graph), "cudaGraphDestroy");
  for (int i = 0; i < 2; ++i) cudaOk(cudaGraphLaunch(replay, device.stream()), "cudaGraphLaunch");
  device.synchronize();
  cudaOk(cudaGraphExecDestroy(replay), "cudaGraphExecDestroy");
  return "";
}

// Every pattern, type and strategy for these shapes, every other call captured. Calls with the same data do not follow
// each other.
std::string fusedCollectives(const RankProcess& self, fcclComm_t comm, RankDevice& device,
                             const std::vector<int64_t>& tokens, const std::vector<int64_t>& hidden) {
  struct Shape {
    FusedProblem problem;
    Bytes norm;  // of the last pattern that gave it
  };
  std::vector<Shape> shapes;
  for (const fcclDataType_t dtype : {fcclBfloat16, fcclFloat16, fcclFloat32}) {
    for (const int64_t rows : tokens) {
      for (const int64_t columns : hidden) {
        FusedCase asked;
        asked.dtype = dtype;
        asked.tokens = rows;
        asked.hidden = columns;
        asked.data = DataKind::kSpecial;
        asked.seed = shapes.size() + 1;
        asked.layout = static_cast<fcclScaleLayout_t>(shapes.size() % 3);
        shapes.push_back({FusedProblem(asked, self.ranks), {}});
      }
    }
  }
  constexpr fcclStrategy_t kStrategies[] = {fcclStrategyOneshot, fcclStrategyTwoshot, fcclStrategyAuto,
                                            fcclStrategyMinLatency};
  size_t call = 0;
  // From the last to the first, so that patterns without normOut come after their siblings.
  for (auto pattern = allPatterns().rbegin(); pattern != allPatterns().rend(); ++pattern) {
    for (Shape& shape : shapes) {
      FusedBuffers own(shape.problem, self.rank, *pattern);
      own.args.strategy = kStrategies[++call / 2 % std::size(kStrategies)];
      device.reset();
      DeviceArgs onDevice(device, shape.problem.asked(), own);
      std::string wrong = callOnce(device, comm, onDevice.args(), call % 2 == 0);
      if (wrong.empty()) wrong = asyncErrorOf(comm);
      if (!wrong.empty()) return wrong;
      onDevice.fetch();
      const FusedOutputs outputs = own.outputs();
      if (traits(*pattern).normOut) shape.norm = outputs.norm;
      wrong = own.intact();
      if (wrong.empty()) wrong = shape.problem.check(*pattern, outputs, shape.norm);
      if (!wrong.empty()) {
        return fmt::format("{} {} {}: {}", patternName(*pattern), strategyName(own.args.strategy),
                           shape.problem.asked().describe(), wrong);
      }
    }
  }
  return "";
}

const RankProgram kCudaCollectives("cuda-collectives", [](RankProcess& self) {
  fcclConfig_t config = cudaConfig();
  if (self.argument == "own") {
    // Before CUDA starts: this process sees one GPU, another one than its peers.
    setenv("CUDA_VISIBLE_DEVICES", std::to_string(self.rank).c_str(), 1);
    config.allowSharedDevice = 0;
  }
  fcclComm_t comm = self.init(&config);
  std::string wrong;
  try {
    RankDevice device;
    if (self.argument == "grid") {
      wrong = fusedCollectives(self, comm, device, {0, 1, 3, 129}, {96, 4096});
    } else {
      wrong = plainCollectives(self, comm, device);
      if (wrong.empty()) wrong = fusedCollectives(self, comm, device, {5}, {2880});
    }
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  self.send(wrong.empty() ? "right" : "wrong " + wrong);
  self.receive();  // all are done
  return fcclCommDestroy(comm) == fcclSuccess && wrong.empty() ? 0 : 1;
});

void collectivesInProcesses(int ranks, const Environment& environment, const std::string& what = "shared") {
  INFO(ranks << " processes, " << what);
  const auto before = fcclNames();
  ProcessRanks processes("cuda-collectives", ranks, environment, what);
  processes.relayId();
  for (int r = 0; r < ranks; ++r) processes.expect(r, "right", Milliseconds(60'000));
  processes.tellAll("leave");
  processes.expectAllExit();
  CHECK(fcclLeftovers(before).empty());
}

}  // namespace

TEST_CASE("CUDA processes: collectives through both ways of sharing memory") {
  FCCL_NEED_GPUS(1);
  collectivesInProcesses(2, {{"FCCL_CUDA_MEMORY", "vmm"}});
  collectivesInProcesses(2, {{"FCCL_CUDA_MEMORY", "ipc"}});
  collectivesInProcesses(3, {});
}

TEST_CASE("CUDA processes: each sees another GPU") {
  FCCL_NEED_GPUS(2);
  collectivesInProcesses(2, {{"FCCL_CUDA_MEMORY", "vmm"}}, "own");
  collectivesInProcesses(2, {{"FCCL_CUDA_MEMORY", "ipc"}}, "own");
}

TEST_CASE("CUDA processes: 8 of them share a GPU") {
  FCCL_NEED_GPUS(1);
  collectivesInProcesses(8, {});
}

TEST_CASE("CUDA grid: 2 to 8 processes", "[.grid]") {
  FCCL_NEED_GPUS(1);
  for (const int ranks : {2, 3, 4, 8}) collectivesInProcesses(ranks, {}, "grid");
}
