// Calls of a CUDA communicator in graphs: captured at once, replayed with new inputs, mixed with eager calls, in every
// capture mode, made and destroyed many times.
#include <fmt/format.h>

#include <barrier>
#include <mutex>
#include <optional>

#include "tests/gpu/replay.h"
#include "tests/support/descriptors.h"

using namespace fccl::test;

TEST_CASE("CUDA graphs: captured at once, replayed with new inputs, mixed with eager calls of other shapes") {
  FCCL_NEED_GPUS(1);
  constexpr int kRanks = 2;
  constexpr size_t kCalls = 3;
  CudaRanks cuda(kRanks);
  FusedCase captured = fusedCase(fcclPatternResidualRmsNorm, fcclBfloat16, 5, 4096, fcclStrategyOneshot);
  const FusedCase other =
      fusedCase(fcclPatternResidualRmsNormOutQuantNvfp4, fcclFloat16, 9, 96, fcclStrategyTwoshot, 31);
  constexpr size_t kInputs = 4;
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
    const DeviceArgs call(device, captured, own);
    FusedBuffers others(eager, rank.rank, other.pattern);
    DeviceArgs between(device, other, others);
    device.synchronize();
    // The communicator's first call ever.
    const Replay replay(device.stream(), [&] {
      for (size_t i = 0; i < kCalls; ++i) {
        rank.ok(fcclAllReduceFused(&call.args(), rank.comm, device.stream()), "captured call");
      }
    });
    rank.expect(replay.nodes() == kCalls, fmt::format("{} nodes for {} calls", replay.nodes(), kCalls));
    const size_t bytes = captured.count() * dtypeBytes(captured.dtype);
    for (size_t round = 0; round < 100; ++round) {
      FusedProblem& problem = *problems[round % kInputs];
      device.upload(const_cast<void*>(call.args().input), problem.inputs[static_cast<size_t>(rank.rank)].data(), bytes);
      device.upload(const_cast<void*>(call.args().residual), problem.residual.data(), bytes);
      device.upload(const_cast<void*>(call.args().weight), problem.weight.data(), problem.weight.size());
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
      device.download(outputs.residual.data(), call.args().residualOut, bytes);
      device.download(outputs.norm.data(), call.args().normOut, bytes);
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

TEST_CASE("CUDA graphs: one rank captures what the other calls eagerly") {
  FCCL_NEED_GPUS(1);
  CudaRanks cuda(2);
  const FusedCase asked = fusedCase(fcclPatternResidualRmsNorm, fcclBfloat16, 4, 2880, fcclStrategyAuto, 41);
  FusedProblem problem(asked, 2);
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
    if (replay) {
      replay->launch();
    } else {
      enqueue();
    }
    device.synchronize();
    together.arrive_and_wait();
    call.fetch();
    return result;
  });
}

TEST_CASE("CUDA graphs: every capture mode, the first call of a communicator") {
  FCCL_NEED_GPUS(1);
  for (const cudaStreamCaptureMode mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
    INFO("mode " << static_cast<int>(mode));
    CudaRanks cuda(2);
    FusedProblem problem(fusedCase(fcclPatternResidualRmsNorm, fcclBfloat16, 6, 2880, fcclStrategyAuto, 61), 2);
    std::barrier together(2);
    // One rank after the other: nothing else may go on while a stream is captured in global mode.
    std::mutex capturing;
    runFused(cuda.group(), problem, [&](Rank& rank, FusedBuffers& own) {
      RankDevice& device = cuda.device(rank.rank);
      device.reset();
      DeviceArgs call(device, problem.asked(), own);
      device.synchronize();
      together.arrive_and_wait();
      std::optional<Replay> replay;
      {
        const std::lock_guard lock(capturing);
        replay.emplace(
            device.stream(),
            [&] { rank.ok(fcclAllReduceFused(&call.args(), rank.comm, device.stream()), "captured call"); }, mode);
      }
      together.arrive_and_wait();
      for (int i = 0; i < 5; ++i) replay->launch();
      device.synchronize();
      together.arrive_and_wait();
      call.fetch();
      return fcclSuccess;
    });
  }
}

TEST_CASE("CUDA graphs: captured, replayed and destroyed 200 times, nothing grows") {
  FCCL_NEED_GPUS(1);
  CudaRanks cuda(2);
  FusedCase asked = fusedCase(fcclPatternResidualRmsNormOutQuantFp8, fcclBfloat16, 1, 4096, fcclStrategyAuto, 62);
  struct Use {
    size_t free, descriptors, mappings;
  };
  const auto use = [] {
    size_t free = 0;
    size_t total = 0;
    REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
    return Use{free, openDescriptors(), mappedLines()};
  };
  std::barrier together(2);
  const auto rounds = [&](int first, int last) {
    cuda.group().run("temporary graphs", [&](Rank& rank) {
      RankDevice& device = cuda.device(rank.rank);
      for (int round = first; round < last; ++round) {
        FusedCase now = asked;
        now.tokens = 1 + round % 40;
        const FusedProblem problem(now, 2);
        FusedBuffers own(problem, rank.rank, now.pattern);
        device.reset();
        const DeviceArgs call(device, now, own);
        device.synchronize();
        const Replay replay(device.stream(), [&] {
          rank.ok(fcclAllReduceFused(&call.args(), rank.comm, device.stream()), "captured call");
        });
        together.arrive_and_wait();
        replay.launch();
        device.synchronize();
        together.arrive_and_wait();
      }
    });
  };
  rounds(0, 50);  // every shape once
  const Use before = use();
  rounds(50, 250);
  const Use after = use();
  CHECK(after.free == before.free);
  CHECK(after.descriptors == before.descriptors);
  CHECK(after.mappings <= before.mappings + 8);  // the heap's own
}
