// Ranks that do not make the same call. With FCCL_CHECK every rank is told what the others called; without it the time
// limit ends it, and no buffer is overrun.
#include <fmt/format.h>

#include <chrono>
#include <functional>

#include "tests/support/catch.h"
#include "tests/support/fused_case.h"
#include "tests/support/process_ranks.h"

using namespace fccl::test;

namespace {

using Clock = std::chrono::steady_clock;

// Buffers that are large enough for either call of a pair; each call says what it does with them.
struct Scratch {
  std::vector<float> in = std::vector<float>(8192, 1.0f);
  std::vector<float> out = std::vector<float>(8192);
  std::vector<float> weight = std::vector<float>(8192, 1.0f);
  std::vector<float> norm = std::vector<float>(8192);
  std::vector<uint8_t> quant = std::vector<uint8_t>(8192);
  float scale = 1;

  fcclFusedArgs_t args(fcclFusionPattern_t pattern, int64_t tokens = 4, int64_t hidden = 64) {
    fcclFusedArgs_t made = FCCL_FUSED_ARGS_INITIALIZER;
    made.pattern = pattern;
    made.dtype = fcclFloat32;
    made.tokens = tokens;
    made.hidden = hidden;
    made.input = in.data();
    if (pattern == fcclPatternAllReduce) made.reducedOut = out.data();
    if (traits(pattern).norm) made.weight = weight.data();
    if (traits(pattern).residual) made.residual = in.data(), made.residualOut = out.data();
    if (traits(pattern).normOut) made.normOut = norm.data();
    if (traits(pattern).quant == Quant::kFp8) made.quantOut = quant.data(), made.fp8DequantScale = &scale;
    return made;
  }
};

using Call = std::function<fcclResult_t(Scratch&, fcclComm_t)>;

Call reduce(size_t count, fcclDataType_t dtype = fcclFloat32, fcclRedOp_t op = fcclSum) {
  return [=](Scratch& s, fcclComm_t comm) {
    return fcclAllReduce(s.in.data(), s.out.data(), count, dtype, op, comm, nullptr);
  };
}

Call fused(fcclFusionPattern_t pattern, int64_t tokens = 4, int64_t hidden = 64,
           const std::function<void(Scratch&, fcclFusedArgs_t&)>& change = nullptr) {
  return [=](Scratch& s, fcclComm_t comm) {
    fcclFusedArgs_t args = s.args(pattern, tokens, hidden);
    if (change) change(s, args);
    return fcclAllReduceFused(&args, comm, nullptr);
  };
}

struct Pair {
  const char* name;
  Call most;
  Call last;            // of the last rank
  const char* both[2];  // what the sentence mentions of either call
};

// The common ground of all pairs is a call of every kind of disagreement.
const std::vector<Pair>& pairs() {
  static const std::vector<Pair> all = {
      {"count", reduce(100), reduce(101), {"100", "101"}},
      {"count, one chunk more", reduce(1000), reduce(1025), {"1000", "1025"}},
      {"op", reduce(100), reduce(100, fcclFloat32, fcclMax), {"sum", "max"}},
      {"dtype of equal size", reduce(100), reduce(100, fcclInt32), {"fp32", "int32"}},
      {"dtype of other size", reduce(100), reduce(100, fcclBfloat16), {"fp32", "bf16"}},
      {"plain and fused", reduce(256), fused(fcclPatternAllReduce), {"256", "4"}},
      {"tokens", fused(fcclPatternRmsNorm), fused(fcclPatternRmsNorm, 5), {"4", "5"}},
      {"hidden", fused(fcclPatternRmsNorm), fused(fcclPatternRmsNorm, 4, 80), {"64", "80"}},
      {"tokens and hidden of equal product",
       fused(fcclPatternRmsNorm),
       fused(fcclPatternRmsNorm, 2, 128),
       {"64", "128"}},
      {"pattern of equal data",
       fused(fcclPatternResidualRmsNorm),
       fused(fcclPatternResidualRmsNormOutQuantFp8),
       {"RESIDUAL_RMS_NORM", "FP8"}},
      {"strategy",
       fused(fcclPatternRmsNorm, 4, 64, [](Scratch&, auto& a) { a.strategy = fcclStrategyOneshot; }),
       fused(fcclPatternRmsNorm, 4, 64, [](Scratch&, auto& a) { a.strategy = fcclStrategyTwoshot; }),
       {"ONESHOT", "TWOSHOT"}},
  };
  return all;
}

// After each disagreement, calls that agree: the communicator must not be hurt.
std::string agreeAgain(fcclComm_t comm, int ranks, size_t round) {
  const size_t count = 50 + 700 * (round % 3);
  std::vector<float> values(count, 1.5f);
  if (fcclAllReduce(values.data(), values.data(), count, fcclFloat32, fcclSum, comm, nullptr) != fcclSuccess) {
    return fmt::format("a call that agrees failed: {}", fcclGetLastError(comm));
  }
  for (const float value : values) {
    if (value != 1.5f * static_cast<float>(ranks)) return "a call that agrees is wrong";
  }
  return "";
}

// What is wrong with the sentence that a rank got for a pair.
std::string judge(const Pair& pair, fcclResult_t result, const std::string& sentence) {
  if (result != fcclInvalidUsage)
    return fmt::format("{}: result {}: {}", pair.name, static_cast<int>(result), sentence);
  for (const char* part : pair.both) {
    if (sentence.find(part) == std::string::npos) {
      return fmt::format("{}: '{}' is not mentioned in: {}", pair.name, part, sentence);
    }
  }
  return "";
}

const RankProgram kDisagree("disagree", [](RankProcess& self) {
  const fcclConfig_t config = testConfig(4096);
  fcclComm_t comm = self.init(&config);
  std::string wrong;
  Scratch scratch;
  for (size_t i = 0; i < pairs().size() && wrong.empty(); ++i) {
    const Pair& pair = pairs()[i];
    const fcclResult_t result = (self.rank == self.ranks - 1 ? pair.last : pair.most)(scratch, comm);
    wrong = judge(pair, result, fcclGetLastError(comm));
    if (wrong.empty()) wrong = agreeAgain(comm, self.ranks, i);
  }
  self.send(wrong.empty() ? "right" : "wrong " + wrong);
  return fcclCommDestroy(comm) == fcclSuccess && wrong.empty() ? 0 : 1;
});

}  // namespace

TEST_CASE("disagreement: FCCL_CHECK=1 tells every rank both calls, and the communicator lives on", "[disagreement]") {
  for (const int ranks : {2, 4}) {
    ProcessRanks processes("disagree", ranks, {{"FCCL_CHECK", "1"}});
    processes.relayId();
    processes.expectAll("right");
    processes.expectAllExit();
  }
}

TEST_CASE("disagreement: checkCalls on threads, any rank may be the odd one", "[disagreement]") {
  fcclConfig_t config = testConfig(4096);
  config.checkCalls = 1;
  RankGroup group(3, config);
  for (int odd = 0; odd < 3; ++odd) {
    group.run("odd one out", [&](Rank& rank) {
      Scratch scratch;
      for (size_t i = 0; i < pairs().size(); ++i) {
        const Pair& pair = pairs()[i];
        const fcclResult_t result = (rank.rank == odd ? pair.last : pair.most)(scratch, rank.comm);
        const std::string wrong = judge(pair, result, fcclGetLastError(rank.comm));
        if (!wrong.empty()) return rank.expect(false, wrong);
        const std::string after = agreeAgain(rank.comm, 3, i);
        if (!after.empty()) return rank.expect(false, fmt::format("after {}: {}", pair.name, after));
      }
    });
  }
}

TEST_CASE("disagreement: order of two calls", "[disagreement]") {
  fcclConfig_t config = testConfig();
  config.checkCalls = 1;
  RankGroup group(2, config);
  group.run("order", [](Rank& rank) {
    Scratch scratch;
    const Call first = reduce(100);
    const Call second = fused(fcclPatternRmsNorm);
    const fcclResult_t results[2] = {(rank.rank == 0 ? first : second)(scratch, rank.comm),
                                     (rank.rank == 0 ? second : first)(scratch, rank.comm)};
    rank.expect(results[0] == fcclInvalidUsage && results[1] == fcclInvalidUsage, "swapped calls are both refused");
    rank.ok(first(scratch, rank.comm), "a call that agrees");
  });
}

TEST_CASE("disagreement: checked calls that agree are not disturbed", "[disagreement]") {
  fcclConfig_t config = testConfig(4096);
  config.checkCalls = 1;
  RankGroup group(4, config);
  uint64_t seed = 0;
  for (const fcclFusionPattern_t pattern : allPatterns()) {
    for (const fcclStrategy_t strategy : {fcclStrategyAuto, fcclStrategyOneshot, fcclStrategyTwoshot}) {
      FusedCase asked;
      asked.pattern = pattern;
      asked.strategy = strategy;
      asked.tokens = 5;
      asked.hidden = 176;
      asked.seed = ++seed;
      runFused(group, asked);
    }
  }
}

namespace {

// A call that differs, unchecked. Whatever comes of it, it ends, and no byte beyond a buffer is touched.
const RankProgram kUnchecked("unchecked", [](RankProcess& self) {
  const fcclConfig_t config = testConfig(4096);
  fcclComm_t comm = self.init(&config);
  FusedCase asked;
  asked.pattern = fcclPatternResidualRmsNormOutQuantNvfp4;
  asked.tokens = self.rank == 0 ? 6 : 7;
  asked.hidden = 160;
  if (self.argument == "hidden") asked.tokens = 6, asked.hidden = self.rank == 0 ? 160 : 176;
  if (self.argument == "dtype") asked.tokens = 6, asked.dtype = self.rank == 0 ? fcclBfloat16 : fcclFloat32;
  if (self.argument == "one call less") asked.tokens = 6;
  FusedProblem problem(asked, self.ranks);
  FusedBuffers own(problem, self.rank, asked.pattern);
  const auto begin = Clock::now();
  fcclResult_t result = fcclSuccess;
  const int calls = self.argument == "one call less" && self.rank == 0 ? 2 : 3;
  for (int i = 0; i < calls && result == fcclSuccess; ++i) result = fcclAllReduceFused(&own.args, comm, nullptr);
  const bool inTime = Clock::now() - begin < Seconds(4) * slowness();
  const std::string damage = own.intact();
  self.send(fmt::format("ended {} {} {}", static_cast<int>(result), inTime ? "in time" : "late", damage));
  self.receive();  // nobody leaves before all have ended, or the others would see a death
  return fcclCommDestroy(comm) == fcclSuccess ? 0 : 1;
});

}  // namespace

TEST_CASE("disagreement: without the check the time limit ends it, and nothing is overrun", "[disagreement]") {
  for (const char* kind : {"tokens", "hidden", "dtype", "one call less"}) {
    for (const char* strategy : {"oneshot", "twoshot"}) {
      INFO(kind << ", " << strategy);
      ProcessRanks processes("unchecked", 2,
                             {{"FCCL_CHECK", "0"}, {"FCCL_TIMEOUT_MS", "1000"}, {"FCCL_STRATEGY", strategy}}, kind);
      processes.relayId();
      for (int rank = 0; rank < 2; ++rank) {
        const std::string said = processes.expect(rank, "ended");
        INFO("rank " << rank << ": " << said);
        CHECK((said.ends_with("in time ") || said.ends_with("in time")));
        CHECK((said.front() == '0' || said.front() == '6'));
      }
      processes.tellAll("leave");
      processes.expectAllExit();
    }
  }
}
