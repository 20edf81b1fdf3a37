// What LOWPRECISION does on HOST besides being right (tests/suites): the scale by itself, every instruction set, many
// ranks.
#include <cmath>
#include <cstring>

#include "kernels/fp8_wire.h"
#include "kernels/host/host_kernels.h"
#include "tests/support/catch.h"
#include "tests/support/fused_case.h"
#include "tests/support/scoped_variable.h"

using namespace fccl;
using namespace fccl::test;

namespace {

// In words. Which of two NaN goes on is the compiler's choice, so one equals another; not so once they are quantized.
std::string difference(fcclDataType_t dtype, const FusedOutputs& expected, const FusedOutputs& actual) {
  const auto differ = [dtype](const Bytes& a, const Bytes& b) {
    if (a.size() != b.size()) return std::string("another size");
    return compareElements(dtype, a.data(), b.data(), a.size() / dtypeBytes(dtype), true);
  };
  std::string all = differ(expected.reduced, actual.reduced) + differ(expected.residual, actual.residual) +
                    differ(expected.norm, actual.norm);
  if (expected.quant != actual.quant) all += " quantized elements";
  if (expected.scales != actual.scales) all += " scales";
  return all;
}

}  // namespace

TEST_CASE("low precision: a block's scale is the smallest power of two that its amax fits", "[lowprecision]") {
  for (int exponent = -149; exponent <= 127; ++exponent) {
    for (const double mantissa : {1.0, 1.0 + 0x1p-23, 1.5, 1.75, 1.75 + 0x1p-23, 2 - 0x1p-23}) {
      const auto amax = static_cast<float>(std::ldexp(mantissa, exponent));
      if (amax == 0 || std::isinf(amax)) continue;
      const float scale = floatOf(fp8ScaleBits(bitsOf(amax)));
      INFO("amax " << amax << ", scale " << scale);
      int of = 0;
      REQUIRE(std::frexp(scale, &of) == 0.5);
      REQUIRE(std::isnormal(scale));
      REQUIRE(scale * fp8Inverse(bitsOf(scale)) == 1.0f);
      const double scaled = double(amax) / scale;
      if (scale > 0x1p-126f) REQUIRE(scaled > 224);
      if (scale < 0x1p119f) REQUIRE(scaled <= 448);
      REQUIRE(std::isfinite(448 * scale));
    }
  }
  CHECK(fp8ScaleBits(0) == bitsOf(0x1p-126f));
}

TEST_CASE("low precision: every instruction set gives the same bytes, but for what a NaN carries", "[lowprecision]") {
  for (const fcclDataType_t dtype : {fcclFloat32, fcclFloat16, fcclBfloat16}) {
    for (const DataKind data : {DataKind::kPlain, DataKind::kCancellation, DataKind::kSpecial}) {
      for (const fcclFusionPattern_t pattern : {fcclPatternAllReduce, fcclPatternResidualRmsNormOutQuantNvfp4}) {
        FusedCase asked = lowPrecisionCase(pattern, dtype, 23, 336);
        asked.data = data;
        const FusedProblem problem(asked, 3);
        FusedOutputs first;
        for (const host::Simd simd : {host::Simd::kGeneric, host::Simd::kAvx2, host::Simd::kAvx512}) {
          if (!host::simdAvailable(simd)) continue;
          INFO(asked.describe() << ", " << host::simdName(simd));
          const ScopedVariable target("FCCL_SIMD", host::simdName(simd));
          RankGroup group(3, testConfig(4096));
          FusedOutputs outputs = callFused(group, problem);
          if (simd == host::Simd::kGeneric) first = outputs;
          CHECK(difference(dtype, first, outputs) == "");
        }
      }
    }
  }
}

TEST_CASE("low precision: 16 and 72 ranks", "[lowprecision]") {
  for (const int ranks : {16, 72}) {
    RankGroup group(ranks, testConfig(ranks == 16 ? 4096 : 65536));
    for (const auto& [pattern, tokens, hidden] : {std::tuple{fcclPatternAllReduce, int64_t{1}, int64_t{9000}},
                                                  {fcclPatternResidualRmsNorm, 100, 48},
                                                  {fcclPatternResidualRmsNormOutQuantNvfp4, ranks + 1, 32}}) {
      FusedProblem problem(lowPrecisionCase(pattern, fcclBfloat16, tokens, hidden), ranks);
      holdInFp8(problem, false);
      runFused(group, problem);
    }
  }
}

TEST_CASE("low precision: FCCL_CHECK tells it from the strategy that it resembles", "[lowprecision]") {
  const ScopedVariable check("FCCL_CHECK", "1");
  RankGroup group(2, testConfig());
  FusedProblem problem(lowPrecisionCase(fcclPatternResidualRmsNorm, fcclBfloat16, 6, 160), 2);
  holdInFp8(problem, false);
  runFused(group, problem);
  std::vector<FusedBuffers> buffers;
  for (int rank = 0; rank < 2; ++rank) buffers.emplace_back(problem, rank, problem.asked().pattern);
  group.run("two strategies", [&](Rank& rank) {
    FusedBuffers& own = buffers[static_cast<size_t>(rank.rank)];
    if (rank.rank == 1) own.args.strategy = fcclStrategyTwoshot;
    rank.fails(fcclAllReduceFused(&own.args, rank.comm, nullptr), fcclInvalidUsage, "LOWPRECISION|TWOSHOT", "call");
    rank.expect(own.untouched(), "an output was written to");
  });
  runFused(group, problem);
}
