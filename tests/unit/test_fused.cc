// What fused calls do on HOST besides being right (tests/suites): many ranks, outputs that stay, the caller's
// floating-point mode.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <fmt/format.h>

#include <array>
#include <cfenv>

#include "tests/support/catch.h"
#include "tests/support/fused_case.h"

using namespace fccl::test;

namespace {

constexpr int kSlotBytes = 4096;
constexpr fcclStrategy_t kStrategies[] = {fcclStrategyAuto, fcclStrategyOneshot, fcclStrategyTwoshot,
                                          fcclStrategyMinLatency};

}  // namespace

TEST_CASE("fused: 72 ranks", "[fused]") {
  RankGroup group(72, testConfig(kSlotBytes));
  for (const fcclFusionPattern_t pattern : allPatterns()) {
    for (const fcclStrategy_t strategy : {fcclStrategyOneshot, fcclStrategyTwoshot}) {
      FusedCase asked;
      asked.pattern = pattern;
      asked.strategy = strategy;
      asked.tokens = strategy == fcclStrategyTwoshot ? 5 : 2;  // fewer rows than ranks
      asked.hidden = 48;
      runFused(group, asked);
    }
  }
}

TEST_CASE("fused: the reduced sum is that of fcclAllReduce", "[fused]") {
  RankGroup group(3, testConfig(4096));
  for (const fcclDataType_t dtype : {fcclFloat32, fcclFloat16, fcclBfloat16}) {
    FusedCase asked;
    asked.dtype = dtype;
    asked.tokens = 13;
    asked.hidden = 333;
    asked.reducedOut = true;
    asked.data = DataKind::kCancellation;
    FusedProblem problem(asked, 3);
    const FusedOutputs fused = runFused(group, problem);
    group.run("plain", [&](Rank& rank) {
      Bytes plain = problem.inputs[static_cast<size_t>(rank.rank)];
      rank.ok(fcclAllReduce(plain.data(), plain.data(), asked.count(), dtype, fcclSum, rank.comm, nullptr), "plain");
      rank.expect(plain == fused.reduced, "fcclAllReduce and reducedOut differ");
    });
  }
}

TEST_CASE("fused: an output stays as it is after later calls", "[fused]") {
  RankGroup group(2, testConfig(kSlotBytes));
  FusedCase asked;
  asked.pattern = fcclPatternResidualRmsNormOutQuantNvfp4;
  asked.tokens = 9;
  asked.hidden = 320;
  asked.reducedOut = true;
  FusedProblem problem(asked, 2);
  std::vector<FusedBuffers> held;
  for (int rank = 0; rank < 2; ++rank) held.emplace_back(problem, rank, asked.pattern);
  group.run("held call", [&](Rank& rank) {
    rank.ok(fcclAllReduceFused(&held[static_cast<size_t>(rank.rank)].args, rank.comm, nullptr), "held call");
  });
  const FusedOutputs first[2] = {held[0].outputs(), held[1].outputs()};
  for (uint64_t i = 0; i < 10; ++i) {
    FusedCase other = asked;
    other.seed = 50 + i;
    other.strategy = kStrategies[i % 4];
    runFused(group, other);
  }
  CHECK(held[0].outputs() == first[0]);
  CHECK(held[1].outputs() == first[1]);
}

TEST_CASE("fused: the caller's floating-point mode neither changes the result nor is changed", "[fused]") {
  // Each rank in another mode: rounding upwards, flushing subnormals, treating them as zero, default.
  for (const fcclStrategy_t strategy : {fcclStrategyOneshot, fcclStrategyTwoshot}) {
    RankGroup group(4, testConfig(kSlotBytes));
    FusedCase asked;
    asked.pattern = fcclPatternResidualRmsNormOutQuantNvfp4;
    asked.dtype = fcclFloat32;
    asked.tokens = 22;
    asked.hidden = 96;
    asked.data = DataKind::kSpecial;
    asked.strategy = strategy;
    asked.reducedOut = true;
    FusedProblem problem(asked, 4);
    std::vector<FusedBuffers> buffers;
    for (int rank = 0; rank < 4; ++rank) buffers.emplace_back(problem, rank, asked.pattern);
    group.run("modes", [&](Rank& rank) {
      FusedBuffers& own = buffers[static_cast<size_t>(rank.rank)];
      if (rank.rank == 0) std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
      if (rank.rank == 1) _mm_setcsr(_mm_getcsr() | 0x8000);
      if (rank.rank == 2) _mm_setcsr(_mm_getcsr() | 0x0040);
      const unsigned before = _mm_getcsr() & ~0x3fu;
#endif
      const fcclResult_t result = fcclAllReduceFused(&own.args, rank.comm, nullptr);
#if defined(__x86_64__)
      rank.expect((_mm_getcsr() & ~0x3fu) == before, "MXCSR is not as it was");
      _mm_setcsr(0x1f80);
#endif
      rank.expect(std::fegetround() == (rank.rank == 0 ? FE_UPWARD : FE_TONEAREST), "rounding is not as it was");
      std::fesetround(FE_TONEAREST);
      rank.ok(result, "fcclAllReduceFused");
    });
    const FusedOutputs first = buffers[0].outputs();
    CHECK(problem.check(asked.pattern, first, first.norm) == "");
    for (size_t rank = 1; rank < 4; ++rank) CHECK((buffers[rank].outputs() == first));
  }
}

namespace {

// FNV-1a of all outputs.
uint64_t fingerprint(const FusedOutputs& outputs) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const Bytes* each : {&outputs.reduced, &outputs.residual, &outputs.norm, &outputs.quant, &outputs.scales}) {
    for (const uint8_t byte : *each) hash = (hash ^ byte) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace

TEST_CASE("fused: the bytes of every pattern are what they have been", "[fused]") {
  // To be changed on purpose only: whoever compares runs of two versions of the library counts on it.
  const uint64_t golden[7][3] = {{0xb6104b098c1282e5, 0xcc0d0f881decb51f, 0x6bc14ec94701f7f0},
                                 {0x28296b46954d6f2b, 0x84aa09a13bf84cb6, 0xcde7fcfd204001d0},
                                 {0x02c9eb3a7458234d, 0x36bb9c0f092f8d2f, 0x00ebf01b88a5a078},
                                 {0xab868e6bde361215, 0x34c8d49e18e58da4, 0xff0a0303e350bfcf},
                                 {0xab868e6bde361215, 0x34c8d49e18e58da4, 0xff0a0303e350bfcf},
                                 {0xc49aba3681d2cbc0, 0x86798e0d810c022b, 0x9d2bcb14d496ad49},
                                 {0xc49aba3681d2cbc0, 0x86798e0d810c022b, 0x9d2bcb14d496ad49}};
  RankGroup group(4, testConfig(kSlotBytes));
  for (const fcclFusionPattern_t pattern : allPatterns()) {
    for (size_t t = 0; t < 3; ++t) {
      FusedCase asked;
      asked.pattern = pattern;
      asked.dtype = std::array{fcclFloat32, fcclFloat16, fcclBfloat16}[t];
      asked.tokens = 5;
      asked.hidden = 2880;
      asked.seed = 20'261'130;
      asked.reducedOut = true;
      const uint64_t actual = fingerprint(runFused(group, asked));
      INFO(asked.describe() << ": " << fmt::format("{:#018x}", actual));
      CHECK(actual == golden[pattern][t]);
    }
  }
}
