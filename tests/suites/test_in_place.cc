// Buffers of one call that may be the same: no bit changes by it.
#include "tests/support/catch.h"
#include "tests/support/fused_case.h"
#include "tests/support/suite_device.h"

using namespace fccl::test;

namespace {

constexpr int64_t kTokens = 5;
constexpr int64_t kHidden = 128;

FusedCase caseOf(fcclFusionPattern_t pattern, fcclStrategy_t strategy) {
  FusedCase asked;
  asked.pattern = pattern;
  asked.strategy = strategy;
  asked.tokens = kTokens;
  asked.hidden = kHidden;
  return asked;
}

// Everything that both hold. In-place runs may hold more (reducedOut), and the norm where it was asked for.
void sameBytes(const FusedOutputs& a, const FusedOutputs& b) {
  CHECK(a.residual == b.residual);
  CHECK(a.norm == b.norm);
  CHECK(a.quant == b.quant);
  CHECK(a.scales == b.scales);
}

}  // namespace

TEST_CASE("aliasing: allowed aliases give the same bits", "[aliasing]") {
  FCCL_NEED_SUITE_DEVICE();
  for (const int slotBytes : {0, 4096}) {
    RankGroup group(3, suiteConfig(slotBytes));
    for (const fcclStrategy_t strategy : {fcclStrategyAuto, fcclStrategyOneshot, fcclStrategyTwoshot}) {
      for (const fcclFusionPattern_t pattern : allPatterns()) {
        FusedCase asked = caseOf(pattern, strategy);
        if (slotBytes != 0) asked.tokens = 40;
        const FusedOutputs apart = runFused(group, asked);
        if (traits(pattern).residual) {
          FusedCase alias = asked;
          alias.residualInPlace = true;
          sameBytes(runFused(group, alias), apart);
          alias.reducedInPlace = true;
          sameBytes(runFused(group, alias), apart);
        }
        FusedCase reduced = asked;
        reduced.reducedInPlace = true;
        sameBytes(runFused(group, reduced), apart);
        if (traits(pattern).normOut) {
          FusedCase norm = asked;
          norm.normInPlace = true;
          sameBytes(runFused(group, norm), apart);
          norm.residualInPlace = traits(pattern).residual;
          norm.reducedOut = true;
          sameBytes(runFused(group, norm), apart);
        }
      }
    }
  }
}

TEST_CASE("aliasing: an in-place sequence as an engine runs it", "[aliasing]") {
  FCCL_NEED_SUITE_DEVICE();
  // The residual stream stays in one buffer over many layers; compared with separate buffers, byte by byte.
  RankGroup group(4, suiteConfig(4096));
  FusedCase layer = caseOf(fcclPatternResidualRmsNormQuantFp8, fcclStrategyAuto);
  layer.tokens = 3;
  Bytes apart;
  Bytes inPlace;
  for (const bool alias : {false, true}) {
    Bytes stream;
    for (uint64_t i = 0; i < 6; ++i) {
      layer.seed = i + 1;
      layer.residualInPlace = alias;
      layer.reducedInPlace = alias;
      FusedProblem problem(layer, 4);
      if (!stream.empty()) problem.residual = stream;
      stream = runFused(group, problem).residual;
    }
    (alias ? inPlace : apart) = stream;
  }
  CHECK(apart == inPlace);
}
