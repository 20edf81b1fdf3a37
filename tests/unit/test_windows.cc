// User buffers: memory that all ranks reach, with and without fused epilogues.
#include <fmt/format.h>

#include <cstring>

#include "tests/support/catch.h"
#include "tests/support/fused_case.h"

using namespace fccl::test;

namespace {

// A window per rank, of `bytes` bytes.
class Windows {
 public:
  Windows(RankGroup& group, size_t bytes)
      : group_(group), at_(static_cast<size_t>(group.ranks())), handles_(at_.size()) {
    group.run("register", [&](Rank& rank) {
      const auto r = static_cast<size_t>(rank.rank);
      if (!rank.ok(fcclMemAllocOn(&at_[r], bytes, fcclDeviceHost), "fcclMemAlloc")) return;
      rank.expect(reinterpret_cast<uintptr_t>(at_[r]) % 64 == 0, "64-byte aligned");
      const char* first = static_cast<const char*>(at_[r]);
      for (size_t i = 0; i < bytes; ++i) {
        if (first[i] != 0) return rank.expect(false, "not zeroed");
      }
      rank.ok(fcclCommWindowRegister(rank.comm, at_[r], bytes, &handles_[r], 0), "fcclCommWindowRegister");
    });
  }
  ~Windows() {
    Failures failures;
    runThreads(group_.ranks(), "deregister", Seconds(30), [&](int rank) {
      const auto r = static_cast<size_t>(rank);
      const Rank self{rank, group_.ranks(), group_.comm(rank), &failures};
      self.ok(fcclCommWindowDeregister(group_.comm(rank), handles_[r]), "fcclCommWindowDeregister");
      self.ok(fcclMemFree(at_[r]), "fcclMemFree");
    });
    if (!failures.none()) FAIL_CHECK(failures.text());
  }
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;

  char* at(int rank) const { return static_cast<char*>(at_[static_cast<size_t>(rank)]); }

 private:
  RankGroup& group_;
  std::vector<void*> at_;
  std::vector<fcclWindow_t> handles_;
};

// All-reduce of window memory: input at 0, output at `outputAt` (0: in place).
void reduceInWindow(RankGroup& group, Windows& windows, size_t count, fcclDataType_t dtype, fcclRedOp_t op,
                    size_t outputAt, uint64_t seed) {
  const size_t bytes = count * dtypeBytes(dtype);
  std::vector<Bytes> data(static_cast<size_t>(group.ranks()), Bytes(bytes));
  std::vector<const void*> at;
  for (int rank = 0; rank < group.ranks(); ++rank) {
    fillPlain(dtype, data[static_cast<size_t>(rank)].data(), count, seed, rank);
    at.push_back(data[static_cast<size_t>(rank)].data());
  }
  const Bytes expected = referenceAllReduce(dtype, op, at, count);
  group.run("all-reduce in windows", [&](Rank& rank) {
    char* own = windows.at(rank.rank);
    std::memcpy(own, at[static_cast<size_t>(rank.rank)], bytes);
    rank.ok(fcclAllReduce(own, own + outputAt, count, dtype, op, rank.comm, nullptr), "fcclAllReduce");
    const std::string wrong = compareAllReduce(dtype, op, expected.data(), own + outputAt, count);
    rank.expect(wrong.empty(), wrong);
    rank.expect(outputAt == 0 || std::memcmp(own, at[static_cast<size_t>(rank.rank)], bytes) == 0, "input overwritten");
  });
}

}  // namespace

TEST_CASE("windows: all-reduce without staging", "[windows]") {
  for (const int ranks : {2, 3, 4}) {
    RankGroup group(ranks, testConfig(4096));
    Windows windows(group, 1 << 20);
    uint64_t seed = 0;
    for (const size_t count : {size_t{1}, size_t{2}, size_t{63}, size_t{1000}, size_t{50'001}}) {
      for (const size_t outputAt : {size_t{0}, size_t{1} << 19}) {
        reduceInWindow(group, windows, count, fcclFloat32, fcclSum, outputAt, ++seed);
        reduceInWindow(group, windows, count, fcclBfloat16, fcclAvg, outputAt, ++seed);
        reduceInWindow(group, windows, count, fcclInt32, fcclMax, outputAt, ++seed);
        reduceInWindow(group, windows, count, fcclFloat64, fcclProd, outputAt, ++seed);
      }
    }
  }
}

TEST_CASE("windows: the input may be overwritten as soon as the call returns", "[windows]") {
  RankGroup group(4, testConfig(4096));
  Windows windows(group, 1 << 16);
  for (uint64_t round = 0; round < 300; ++round) {
    reduceInWindow(group, windows, 1 + hash(1, round) % 8000, fcclFloat32, fcclSum, round % 2 == 0 ? 0 : 32768, round);
  }
  // The same without returning to the test's thread between the calls, which keeps ranks together.
  group.run("back to back", [&](Rank& rank) {
    auto* own = reinterpret_cast<int32_t*>(windows.at(rank.rank));
    for (int32_t round = 0; round < 2000; ++round) {
      const size_t count = 1 + static_cast<size_t>(round % 97);
      for (size_t i = 0; i < count; ++i) own[i] = round * 1000 + rank.rank + static_cast<int32_t>(i);
      if (!rank.ok(fcclAllReduce(own, own + 4096, count, fcclInt32, fcclSum, rank.comm, nullptr), "all-reduce")) return;
      for (size_t i = 0; i < count; ++i) {
        if (own[4096 + i] == 4 * (round * 1000 + static_cast<int32_t>(i)) + 6) continue;
        return rank.expect(false, fmt::format("round {}: wrong sum at {}", round, i));
      }
    }
  });
}

TEST_CASE("windows: fused calls give the same bits as without windows", "[windows]") {
  RankGroup group(3, testConfig(4096));
  Windows windows(group, 1 << 20);
  for (const fcclFusionPattern_t pattern : allPatterns()) {
    for (const fcclStrategy_t strategy : {fcclStrategyAuto, fcclStrategyUb}) {
      FusedCase asked;
      asked.pattern = pattern;
      asked.tokens = 7;
      asked.hidden = 320;
      FusedProblem problem(asked, 3);
      const FusedOutputs expected = runFused(group, problem);
      group.run("input in a window", [&](Rank& rank) {
        FusedBuffers own(problem, rank.rank, pattern);
        const Bytes& input = problem.inputs[static_cast<size_t>(rank.rank)];
        std::memcpy(windows.at(rank.rank), input.data(), input.size());
        own.args.input = windows.at(rank.rank);
        own.args.strategy = strategy;
        if (!traits(pattern).norm) own.args.reducedOut = windows.at(rank.rank) + (1 << 19);
        if (!rank.ok(fcclAllReduceFused(&own.args, rank.comm, nullptr), patternName(pattern))) return;
        const FusedOutputs got = own.outputs();
        rank.expect(got.reduced == expected.reduced, "reducedOut");
        rank.expect(got.residual == expected.residual, "residualOut");
        rank.expect(got.norm.empty() || got.norm == expected.norm, "normOut");
        rank.expect(got.quant == expected.quant, "quantOut");
        rank.expect(got.scales == expected.scales, "scaleOut");
        rank.expect(own.intact().empty(), own.intact());
      });
    }
  }
}

TEST_CASE("windows: window and ordinary calls, alternately", "[windows]") {
  RankGroup group(2, testConfig(4096));
  Windows windows(group, 1 << 16);
  FusedCase asked;
  asked.tokens = 3;
  for (uint64_t round = 0; round < 50; ++round) {
    asked.seed = round;
    reduceInWindow(group, windows, 1 + hash(4, round) % 5000, fcclFloat32, fcclSum, 0, round);
    runFused(group, asked);
  }
}

TEST_CASE("windows: registered again with another size at the same address", "[windows]") {
  RankGroup group(2);
  for (uint64_t round = 0; round < 20; ++round) {
    Windows windows(group, size_t{4096} << (round % 4));
    reduceInWindow(group, windows, 900, fcclFloat32, fcclSum, 0, round);
  }
}

TEST_CASE("windows: what cannot be registered", "[windows]") {
  RankGroup group(2);
  group.run("bad windows", [](Rank& rank) {
    fcclWindow_t window = nullptr;
    std::vector<char> ordinary(4096);
    void* block = nullptr;
    rank.ok(fcclMemAllocOn(&block, 4096, fcclDeviceHost), "fcclMemAlloc");
    rank.fails(fcclCommWindowRegister(rank.comm, nullptr, 64, &window, 0), fcclInvalidArgument, "buff", "buff NULL");
    rank.fails(fcclCommWindowRegister(rank.comm, block, 64, nullptr, 0), fcclInvalidArgument, "window", "window NULL");
    rank.fails(fcclCommWindowRegister(rank.comm, block, 1 << 20, &window, 0), fcclInvalidArgument, "",
               "beyond the block");
    rank.fails(fcclCommWindowRegister(rank.comm, ordinary.data(), 64, &window, 0), fcclInvalidArgument, "",
               "memory that is not fcclMemAlloc's");
    rank.fails(fcclCommWindowRegister(rank.comm, block, 0, &window, 0), fcclInvalidArgument, "size", "size 0");
    rank.ok(fcclMemFree(block), "fcclMemFree");
    rank.expect(fcclMemFree(ordinary.data()) == fcclInvalidArgument, "free of foreign memory");
  });
  runFused(group, FusedCase{});
}

TEST_CASE("windows: the strategy UB without a window is refused by name", "[windows]") {
  RankGroup group(2);
  group.run("UB without a window", [](Rank& rank) {
    float value[64] = {};
    fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
    args.dtype = fcclFloat32;
    args.tokens = 1;
    args.hidden = 64;
    args.input = args.reducedOut = value;
    args.strategy = fcclStrategyUb;
    const fcclResult_t result = fcclAllReduceFused(&args, rank.comm, nullptr);
    rank.expect(result == fcclInvalidArgument || result == fcclInvalidUsage, "refused");
    rank.expect(std::string(fcclGetLastError(rank.comm)).find("UB") != std::string::npos, "the strategy is named");
  });
  runFused(group, FusedCase{});
}
