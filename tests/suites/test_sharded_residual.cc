// residualSharded: each rank has the residual of its own tokens only, and all outputs have the bits that they have
// without it.
#include <cstring>

#include "tests/support/catch.h"
#include "tests/support/fused_case.h"
#include "tests/support/suite_device.h"

using namespace fccl::test;

namespace {

constexpr fcclDataType_t kTypes[] = {fcclFloat32, fcclFloat16, fcclBfloat16};
constexpr fcclScaleLayout_t kLayouts[] = {fcclScaleSwizzled128x4, fcclScaleSwizzled8x4, fcclScaleLinear};
constexpr fcclFusionPattern_t kResidualPatterns[] = {
    fcclPatternResidualRmsNorm, fcclPatternResidualRmsNormQuantFp8, fcclPatternResidualRmsNormOutQuantFp8,
    fcclPatternResidualRmsNormQuantNvfp4, fcclPatternResidualRmsNormOutQuantNvfp4};

// The same outputs as ONESHOT's of a whole residual, whose rows every rank reduces and normalizes for itself.
void runBothWays(RankGroup& group, const FusedCase& whole) {
  FusedCase sharded = whole;
  sharded.sharded = true;
  sharded.strategy = whole.seed % 2 == 0 ? fcclStrategyAuto : fcclStrategyTwoshot;
  FusedProblem problem(sharded, group.ranks());
  const FusedOutputs got = runFused(group, problem);
  FusedCase oneshot = whole;
  oneshot.strategy = fcclStrategyOneshot;
  FusedProblem other(oneshot, group.ranks());
  INFO(group.ranks() << " ranks: " << sharded.describe());
  REQUIRE(got == runFused(group, other));
}

void runShapes(int ranks, int slotBytes, std::initializer_list<int64_t> hiddens, size_t most) {
  RankGroup group(ranks, suiteConfig(slotBytes));
  uint64_t n = static_cast<uint64_t>(ranks);
  for (const int64_t hidden : hiddens) {
    for (const int64_t tokens : {0, 1, 2, 3, 7, 8, 64, 129}) {
      for (const fcclFusionPattern_t pattern : kResidualPatterns) {
        n++;
        FusedCase asked = fusedCase(pattern, kTypes[n % 3], tokens, hidden);
        if (asked.count() * static_cast<size_t>(ranks) > most) continue;
        if (traits(pattern).quant == Quant::kNvfp4) asked.hidden = (hidden + 15) / 16 * 16;
        asked.layout = kLayouts[n / 3 % 3];
        asked.data = n % 5 == 0 ? DataKind::kSpecial : n % 5 == 1 ? DataKind::kCancellation : DataKind::kPlain;
        asked.weightBias = static_cast<float>(n / 2 % 2);
        asked.fp32Weight = n / 7 % 2 == 0;
        asked.residualInPlace = n / 5 % 2 == 0;
        asked.seed = n;
        runBothWays(group, asked);
      }
    }
  }
}

}  // namespace

TEST_CASE("sharded residual: 1 rank", "[sharded]") {
  FCCL_NEED_SUITE_DEVICE();
  runShapes(1, 0, {1, 64, 100, 2880}, 100'000);
}
TEST_CASE("sharded residual: 2 ranks", "[sharded]") {
  FCCL_NEED_SUITE_DEVICE();
  runShapes(2, 0, {1, 7, 16, 48, 64, 96, 100, 511, 2880}, 200'000);
}
TEST_CASE("sharded residual: 3 ranks, staging that holds a few rows", "[sharded]") {
  FCCL_NEED_SUITE_DEVICE();
  runShapes(3, 16384, {7, 64, 96, 511}, 100'000);
}
TEST_CASE("sharded residual: 4 ranks", "[sharded]") {
  FCCL_NEED_SUITE_DEVICE();
  runShapes(4, 0, {7, 64, 112, 2880}, 150'000);
}
TEST_CASE("sharded residual: 8 ranks, also more of them than tokens", "[sharded]") {
  FCCL_NEED_SUITE_DEVICE();
  runShapes(8, 0, {8, 64, 100, 2880}, 200'000);
}

TEST_CASE("sharded residual: a call that takes the staging areas several times over", "[sharded]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(3, suiteConfig(65536));
  for (const fcclFusionPattern_t pattern : kResidualPatterns) {
    FusedCase asked = fusedCase(pattern, fcclBfloat16, 200, 4096);
    asked.seed = static_cast<uint64_t>(pattern);
    runBothWays(group, asked);
  }
}

TEST_CASE("sharded residual: codes that are negative zeros arrive as what they are", "[sharded]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(2, suiteConfig());
  // Of each block of 16 columns one run of 8 (of 4 where elements have 4 bytes) is large and the others are too small
  // for any code but zero, all negative: whole words of codes 8, which is what a wire might take for something else.
  for (const fcclDataType_t dtype : kTypes) {
    for (const fcclFusionPattern_t pattern :
         {fcclPatternResidualRmsNormQuantNvfp4, fcclPatternResidualRmsNormQuantFp8, fcclPatternResidualRmsNorm}) {
      FusedCase asked = fusedCase(pattern, dtype, 5, 96);
      FusedProblem plain(asked, 2);
      asked.sharded = true;
      FusedProblem sharded(asked, 2);
      for (FusedProblem* problem : {&plain, &sharded}) {
        for (size_t i = 0; i < asked.count(); ++i) {
          const size_t column = i % 96;
          const size_t large = i / 96 % 2 == 0 ? 0 : 8;  // in the first or the second half of the block
          const bool isLarge = column % 16 >= large && column % 16 < large + 8 && column / 16 % 3 != 2;
          const double value = isLarge ? (column % 2 == 0 ? 1 : -1) : column / 16 % 3 == 2 ? -0.0 : -1e-4;
          for (Bytes& input : problem->inputs) store(dtype, input.data(), i, value);
          store(dtype, problem->residual.data(), i, 0);
        }
      }
      const FusedOutputs got = runFused(group, sharded);
      REQUIRE(got == runFused(group, plain));
      if (pattern != fcclPatternResidualRmsNormQuantNvfp4) continue;
      size_t words = 0;
      for (size_t at = 0; at + 4 <= got.quant.size(); at += 4) {
        uint32_t word;
        std::memcpy(&word, &got.quant[at], sizeof(word));
        words += word == 0x88888888u ? 1 : 0;
      }
      CHECK(words > 0);  // else the data is not what this test is about
    }
  }
}

TEST_CASE("sharded residual: between other calls, with shapes that change", "[sharded]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(3, suiteConfig());
  for (uint64_t n = 0; n < 60; ++n) {
    FusedCase asked =
        fusedCase(allPatterns()[hash(7, n) % 7], kTypes[hash(8, n) % 3], static_cast<int64_t>(1 + hash(9, n) % 40),
                  static_cast<int64_t>(16 * (1 + hash(10, n) % 20)));
    asked.sharded = traits(asked.pattern).residual && n % 2 == 0;
    if (!asked.sharded && n % 3 == 0) asked.strategy = fcclStrategyOneshot;
    asked.seed = n;
    runFused(group, asked);
  }
}

TEST_CASE("sharded residual: rows that are too long are refused on every rank, and the communicator goes on",
          "[sharded]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(3, suiteConfig(4096));
  FusedCase asked = fusedCase(fcclPatternResidualRmsNormQuantNvfp4, fcclBfloat16, 5, 40000);
  asked.sharded = true;
  const FusedProblem problem(asked, group.ranks());
  group.run("long rows", [&](Rank& rank) {
    FusedBuffers own(problem, rank.rank, asked.pattern);
    rank.fails(suiteDevice().call(rank, own), fcclInvalidArgument, "residualSharded", "long rows");
    rank.expect(own.untouched(), "an output was written");
  });
  asked.hidden = 64;
  runFused(group, asked);
}
