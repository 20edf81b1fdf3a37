// Tens of thousands of calls of every kind back to back, in random but equal order on all ranks, with delays at random
// and at every step of the protocols.
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "lib/testing.h"
#include "tests/support/catch.h"
#include "tests/support/fused_case.h"

using namespace fccl::test;

namespace {

constexpr fcclStrategy_t kStrategies[] = {fcclStrategyAuto, fcclStrategyOneshot, fcclStrategyTwoshot,
                                          fcclStrategyMinLatency};

// Small integers as fp32: every sum is exact, so a rank can check each element of each call by itself, at once.
float exactInput(uint64_t call, int rank, size_t i) {
  return static_cast<float>(static_cast<int64_t>(hash(call * 131 + static_cast<uint64_t>(rank), i) % 2001) - 1000);
}

struct MixedCall {
  bool fused;
  fcclFusionPattern_t pattern;
  fcclStrategy_t strategy;
  int64_t tokens;
  int64_t hidden;

  explicit MixedCall(uint64_t call) {
    const auto pick = [&](uint64_t salt, uint64_t size) { return hash(salt, call) % size; };
    fused = pick(1, 3) != 0;
    pattern = pick(2, 3) == 0   ? fcclPatternAllReduce
              : pick(2, 3) == 1 ? fcclPatternRmsNorm
                                : fcclPatternResidualRmsNorm;
    strategy = kStrategies[pick(3, 4)];
    tokens = static_cast<int64_t>(pick(4, 20) == 0 ? 40 : 1 + pick(4, 5));
    const int64_t widths[] = {1, 8, 17, 64, 100, 320};
    hidden = widths[pick(5, 6)];
    if (pick(6, 300) == 0) hidden = 5000;
  }
};

// Buffers of one rank for all calls.
struct MixBuffers {
  explicit MixBuffers(size_t most)
      : input(most), residual(most), reduced(most), residualOut(most), norm(most), weight(most, 1) {}
  std::vector<float> input, residual, reduced, residualOut, norm, weight;
};

constexpr size_t kMostElements = size_t{40} * 5000;

// Makes call number `call` and checks reducedOut and residualOut exactly and the norm for plausibility.
std::string mixedCall(uint64_t call, const Rank& rank, MixBuffers& own) {
  const MixedCall asked(call);
  const auto count = static_cast<size_t>(asked.tokens * asked.hidden);
  for (size_t i = 0; i < count; ++i) own.input[i] = exactInput(call, rank.rank, i);
  fcclResult_t result;
  const bool residual = asked.fused && asked.pattern == fcclPatternResidualRmsNorm;
  if (!asked.fused) {
    result = fcclAllReduce(own.input.data(), own.reduced.data(), count, fcclFloat32, fcclSum, rank.comm, nullptr);
  } else {
    fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
    args.pattern = asked.pattern;
    args.dtype = fcclFloat32;
    args.tokens = asked.tokens;
    args.hidden = asked.hidden;
    args.strategy = asked.strategy;
    args.input = own.input.data();
    args.reducedOut = own.reduced.data();
    if (asked.pattern != fcclPatternAllReduce) args.weight = own.weight.data(), args.normOut = own.norm.data();
    if (residual) {
      for (size_t i = 0; i < count; ++i) own.residual[i] = exactInput(call, 999, i);
      args.residual = own.residual.data();
      args.residualOut = own.residualOut.data();
    }
    result = fcclAllReduceFused(&args, rank.comm, nullptr);
  }
  if (result != fcclSuccess) return fmt::format("call {}: {}", call, fcclGetLastError(rank.comm));
  for (size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int r = 0; r < rank.ranks; ++r) sum += exactInput(call, r, i);
    if (own.reduced[i] != sum)
      return fmt::format("call {}: sum {} of {} is {}, not {}", call, i, count, own.reduced[i], sum);
    if (residual && own.residualOut[i] != sum + own.residual[i]) return fmt::format("call {}: residual {}", call, i);
    if (asked.fused && asked.pattern != fcclPatternAllReduce) {
      const float r = residual ? own.residualOut[i] : own.reduced[i];
      const bool plausible = r == 0 ? own.norm[i] == 0 : (own.norm[i] > 0) == (r > 0) && own.norm[i] * r > 0;
      if (!plausible) return fmt::format("call {}: norm {} of r {} is {}", call, i, r, own.norm[i]);
    }
  }
  return "";
}

void mix(RankGroup& group, uint64_t first, uint64_t calls, int delayOneIn, Seconds limit = Seconds(120)) {
  group.run(
      "random mix",
      [&](Rank& rank) {
        MixBuffers own(kMostElements);
        for (uint64_t call = first; call < first + calls; ++call) {
          const uint64_t chance = hash(call, static_cast<uint64_t>(rank.rank) + 500);
          if (delayOneIn != 0 && chance % static_cast<uint64_t>(delayOneIn) == 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(chance / 1000 % 300));
          }
          const std::string wrong = mixedCall(call, rank, own);
          if (!wrong.empty()) return rank.expect(false, wrong);
        }
      },
      limit);
}

uint64_t calls(uint64_t wanted) { return slowness() > 1 ? wanted / 10 : wanted; }

// Delays at the named steps of the protocols, drawn per rank and step.
struct StepDelays {
  explicit StepDelays(uint64_t seed) : state(seed) {}
  uint64_t state;
  uint64_t steps = 0;
  static void step(void* context, const char* name) {
    auto& self = *static_cast<StepDelays*>(context);
    const uint64_t chance = hash(self.state, ++self.steps + static_cast<uint64_t>(name[0]));
    if (chance % 7 == 0) std::this_thread::yield();
    if (chance % 97 == 0) std::this_thread::sleep_for(std::chrono::microseconds(chance / 128 % 200));
  }
};

}  // namespace

TEST_CASE("stress: random mix, 2 ranks", "[stress]") {
  RankGroup group(2, testConfig(4096));
  mix(group, 0, calls(20'000), 0);
}

TEST_CASE("stress: random mix, 4 ranks, random delays", "[stress]") {
  RankGroup group(4, testConfig(4096));
  mix(group, 100'000, calls(6'000), 40);
}

TEST_CASE("stress: random mix, 7 ranks", "[stress]") {
  RankGroup group(7, testConfig(4096));
  mix(group, 200'000, calls(2'000), 100);
}

TEST_CASE("stress: random mix, slots of the default size", "[stress]") {
  RankGroup group(3);
  mix(group, 300'000, calls(3'000), 100);
}

TEST_CASE("stress: random mix, a hundred thousand calls of 4 ranks with random delays", "[.soak]") {
  RankGroup group(4, testConfig(4096));
  mix(group, 600'000, 100'000, 100, Seconds(900));
}

TEST_CASE("stress: delays at every step of the protocols, both wires, 2 to 72 ranks", "[stress]") {
  for (const int ranks : {2, 3, 5, 8, 16, 72}) {
    for (const int wire : {0, 1}) {
      RankGroup group(ranks, testConfig(4096));
      std::vector<StepDelays> delays;
      std::vector<fccl::host::TestHooks> hooks(static_cast<size_t>(ranks));
      for (int rank = 0; rank < ranks; ++rank) delays.emplace_back(static_cast<uint64_t>(rank * 10 + wire));
      for (int rank = 0; rank < ranks; ++rank) {
        fccl::host::TestHooks& own = hooks[static_cast<size_t>(rank)];
        own.step = StepDelays::step;
        own.context = &delays[static_cast<size_t>(rank)];
        own.forceWire = true;
        own.wire = wire;
        fccl::testing::worldOf(group.comm(rank)).hooks = &own;
      }
      mix(group, 400'000, ranks > 16 ? 4 : ranks > 8 ? 20 : 100, 0);
      uint64_t steps = 0;
      for (const StepDelays& each : delays) steps += each.steps;
      INFO(ranks << " ranks, wire " << wire);
      CHECK(steps > 0);  // or the hooks are not called at all
    }
  }
}

TEST_CASE("stress: sequence numbers wrap around", "[stress]") {
  for (const uint32_t first : {0x7ffffff0u, 0xfffffff0u, 0xfffffffeu, 0xffffffffu}) {
    fccl::testing::testOptions().firstSequence = first;
    for (const int wire : {0, 1}) {
      fcclConfig_t config = testConfig(4096);
      config.checkCalls = static_cast<int>(first % 2);  // the sequence of the checks as well
      RankGroup group(3, config);
      std::vector<fccl::host::TestHooks> hooks(3);
      for (int rank = 0; rank < 3; ++rank) {
        hooks[static_cast<size_t>(rank)].forceWire = true;
        hooks[static_cast<size_t>(rank)].wire = wire;
        fccl::testing::worldOf(group.comm(rank)).hooks = &hooks[static_cast<size_t>(rank)];
      }
      mix(group, 500'000 + first, 64, 10);
    }
  }
  fccl::testing::testOptions().firstSequence = 0;
}

namespace {

void alternate(int rounds) {
  RankGroup first(4, testConfig(4096));
  RankGroup second(4, testConfig(8192));
  for (int round = 0; round < rounds; ++round) {
    std::optional<RankGroup> third;
    if (round % 3 == 0) third.emplace(4, testConfig(4096));
    Failures failures;
    runThreads(4, "alternating", Seconds(40), [&](int r) {
      MixBuffers own(kMostElements);
      const Rank a{r, 4, first.comm(r), &failures};
      const Rank b{r, 4, second.comm(r), &failures};
      for (uint64_t i = 0; i < 10; ++i) {
        for (const Rank& rank : {a, b}) {
          const std::string wrong = mixedCall(static_cast<uint64_t>(round) * 10 + i, rank, own);
          if (!wrong.empty()) return failures.add(wrong);
        }
        if (third) {
          const Rank c{r, 4, third->comm(r), &failures};
          const std::string wrong = mixedCall(i, c, own);
          if (!wrong.empty()) return failures.add(wrong);
        }
      }
    });
    if (!failures.none()) FAIL(failures.text());
  }
}

}  // namespace

TEST_CASE("stress: two communicators alternately while a third comes and goes", "[stress]") {
  alternate(slowness() > 1 ? 20 : 120);
}

TEST_CASE("stress: two communicators alternately while a third comes and goes, 500 rounds", "[.soak]") {
  alternate(500);
}

TEST_CASE("stress: the first call right after initialisation, many times", "[stress]") {
  // A quick rank's first message must not be lost to a slow rank that still arms its slots.
  const int rounds = slowness() > 1 ? 60 : 1000;
  for (int round = 0; round < rounds; ++round) {
    std::vector<fcclComm_t> comms(3);
    fcclUniqueId id;
    REQUIRE(fcclGetUniqueId(&id) == fcclSuccess);
    const fcclConfig_t config = testConfig(4096);
    Failures failures;
    runThreads(3, "init and call", Seconds(30), [&](int r) {
      fcclComm_t comm = nullptr;
      if (fcclCommInit(&comm, 3, id, r, &config) != fcclSuccess) return failures.add(fcclGetLastError(nullptr));
      MixBuffers own(kMostElements / 20);
      const Rank rank{r, 3, comm, &failures};
      float value = static_cast<float>(r + 1);
      rank.ok(fcclAllReduce(&value, &value, 1, fcclFloat32, fcclSum, comm, nullptr), "first call");
      rank.expect(value == 6, "first sum");
      rank.ok(fcclCommDestroy(comm), "destroy");
    });
    if (!failures.none()) FAIL("round " << round << ": " << failures.text());
  }
}
