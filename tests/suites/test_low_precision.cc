// LOWPRECISION: exact for data that FP8 holds, byte by byte in every pattern; for other data within the error of two
// roundings to FP8; what is not finite stays visible.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "tests/support/catch.h"
#include "tests/support/fused_case.h"
#include "tests/support/suite_device.h"
#include "tests/support/tolerance.h"

using namespace fccl::test;

namespace {

constexpr int kSlotBytes = 4096;
constexpr fcclDataType_t kTypes[] = {fcclFloat32, fcclFloat16, fcclBfloat16};

double sumOf(const FusedProblem& problem, size_t i) {
  double sum = 0;
  for (const Bytes& input : problem.inputs) sum += load(problem.asked().dtype, input.data(), i);
  return sum;
}

// Of `reduced`, against the exact sums.
double relativeL2(const FusedProblem& problem, const Bytes& reduced) {
  double error = 0;
  double size = 0;
  for (size_t i = 0; i < problem.asked().count(); ++i) {
    const double sum = sumOf(problem, i);
    const double off = load(problem.asked().dtype, reduced.data(), i) - sum;
    error += off * off;
    size += sum * sum;
  }
  return std::sqrt(error / size);
}

}  // namespace

TEST_CASE("low precision: data that FP8 holds comes back exactly, in every pattern and shape", "[lowprecision]") {
  FCCL_NEED_SUITE_DEVICE();
  constexpr fcclScaleLayout_t kLayouts[] = {fcclScaleSwizzled128x4, fcclScaleSwizzled8x4, fcclScaleLinear};
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const int slotBytes : {kSlotBytes, 0}) {
      RankGroup group(ranks, suiteConfig(slotBytes));
      uint64_t n = static_cast<uint64_t>(ranks);
      for (const fcclFusionPattern_t pattern : allPatterns()) {
        for (const auto& [tokens, hidden] : {std::pair<int64_t, int64_t>{0, 64},
                                             {1, 96},
                                             {3, 7},
                                             {9, 128},
                                             {13, 130},
                                             {8, 640},
                                             {129, 64},
                                             {17, 2880},
                                             {2, 8192}}) {
          n++;
          const bool nvfp4 = traits(pattern).quant == Quant::kNvfp4;
          if (static_cast<size_t>(tokens * hidden) * static_cast<size_t>(ranks) > 150'000) continue;
          FusedCase asked = lowPrecisionCase(pattern, kTypes[n % 3], tokens, nvfp4 ? (hidden + 15) / 16 * 16 : hidden);
          asked.layout = kLayouts[n % 3];
          asked.reducedOut = n % 2 == 0;
          asked.seed = n;
          FusedProblem problem(asked, ranks);
          holdInFp8(problem, n % 4 == 0);
          runFused(group, problem);
        }
      }
    }
  }
}

TEST_CASE("low precision: plain calls of any length, also many chunks of them", "[lowprecision]") {
  FCCL_NEED_SUITE_DEVICE();
  for (const int ranks : {2, 3, 4, 8}) {
    for (const int slotBytes : {kSlotBytes, 0}) {
      RankGroup group(ranks, suiteConfig(slotBytes));
      uint64_t n = static_cast<uint64_t>(ranks);
      for (const int64_t count : {1, 63, 64, 128, 129, 255, 1000, 4097, 70'001}) {
        FusedCase asked = lowPrecisionCase(fcclPatternAllReduce, kTypes[n++ % 3], 1, count);
        asked.seed = n;
        FusedProblem problem(asked, ranks);
        holdInFp8(problem, false);
        runFused(group, problem);
      }
    }
  }
}

TEST_CASE("low precision: a common power of two changes nothing", "[lowprecision]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(2, suiteConfig(kSlotBytes));
  for (const int power : {-117, -60, -1, 1, 40, 119}) {
    for (const fcclDataType_t dtype : {fcclFloat32, fcclBfloat16}) {
      const FusedCase asked = lowPrecisionCase(fcclPatternAllReduce, dtype, 1, 1000);
      FusedProblem problem(asked, 2);
      holdInFp8(problem, false, power);
      runFused(group, problem);
    }
  }
}

TEST_CASE("low precision: buffers that are the same", "[lowprecision]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(3, suiteConfig(kSlotBytes));
  for (const fcclFusionPattern_t pattern : allPatterns()) {
    for (int alias = 0; alias < 8; ++alias) {
      FusedCase asked = lowPrecisionCase(pattern, kTypes[alias % 3], 40, 128);
      asked.residualInPlace = (alias & 1) != 0 && traits(pattern).residual;
      asked.reducedInPlace = (alias & 2) != 0;
      asked.normInPlace = (alias & 4) != 0 && !asked.reducedInPlace && traits(pattern).normOut;
      FusedProblem problem(asked, 3);
      holdInFp8(problem, alias % 2 == 0);
      runFused(group, problem);
    }
  }
}

TEST_CASE("low precision: unit normal data within the error of two roundings", "[lowprecision]") {
  FCCL_NEED_SUITE_DEVICE();
  for (const int ranks : {2, 3, 4, 8}) {
    RankGroup group(ranks, suiteConfig());
    for (const fcclDataType_t dtype : kTypes) {
      for (const auto& [pattern, tokens, hidden] : {std::tuple{fcclPatternAllReduce, int64_t{1}, int64_t{30'000}},
                                                    {fcclPatternResidualRmsNormOutQuantFp8, 33, 720},
                                                    {fcclPatternResidualRmsNormOutQuantNvfp4, 16, 2880}}) {
        const FusedCase asked = lowPrecisionCase(pattern, dtype, tokens, hidden);
        FusedProblem problem(asked, ranks);
        makeNormal(problem, 7000 + static_cast<uint64_t>(ranks));
        const FusedOutputs outputs = callFused(group, problem);
        const double error = relativeL2(problem, outputs.reduced);
        INFO(asked.describe() << ", " << ranks << " ranks: relative L2 error " << error);
        CHECK(error <= kLowPrecisionL2);
        CHECK(error >= kLowPrecisionLeastL2);
        // What follows the sum is the epilogue of the sum as it came.
        FusedProblem rest(asked, 1);
        rest.inputs[0] = outputs.reduced;
        rest.residual = problem.residual;
        rest.weight = problem.weight;
        CHECK(rest.check(pattern, outputs, outputs.norm) == "");
      }
    }
  }
}

TEST_CASE("low precision: no element is off by more than two roundings", "[lowprecision]") {
  FCCL_NEED_SUITE_DEVICE();
  // Values over 40 powers of two, so that blocks hold what FP8 flushes.
  RankGroup group(3, suiteConfig(kSlotBytes));
  const FusedCase asked = lowPrecisionCase(fcclPatternAllReduce, fcclFloat32, 1, 20'000);
  FusedProblem problem(asked, 3);
  double largest = 0;
  for (size_t i = 0; i < asked.count(); ++i) {
    for (uint64_t r = 0; r < 3; ++r) {
      const double value = std::ldexp(uniform(50 + r, i), static_cast<int>(hash(60 + r, i / 7) % 41) - 20);
      store(asked.dtype, problem.inputs[r].data(), i, value);
      largest = std::max(largest, std::abs(value));
    }
  }
  const Bytes reduced = callFused(group, problem).reduced;
  for (size_t i = 0; i < asked.count(); ++i) {
    double magnitudes = 0;
    for (const Bytes& input : problem.inputs) magnitudes += std::abs(load(asked.dtype, input.data(), i));
    const double allowed = magnitudes / 16 * (2 + 1.0 / 16) + 7 * std::ldexp(largest, -17);
    const double got = load(asked.dtype, reduced.data(), i);
    INFO("element " << i << ": sum " << sumOf(problem, i) << ", got " << got);
    REQUIRE(std::abs(got - sumOf(problem, i)) <= allowed);
  }
}

TEST_CASE("low precision: what is not finite stays so and harms no neighbour", "[lowprecision]") {
  FCCL_NEED_SUITE_DEVICE();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  for (const int ranks : {2, 3}) {
    RankGroup group(ranks, suiteConfig(kSlotBytes));
    for (const fcclDataType_t dtype : kTypes) {
      const FusedCase asked = lowPrecisionCase(fcclPatternAllReduce, dtype, 1, 3000);
      FusedProblem problem(asked, ranks);
      holdInFp8(problem, true);
      const auto special = [&](size_t i) { return hash(77, i) % 50 == 0; };
      for (size_t i = 0; i < asked.count(); ++i) {
        if (!special(i)) continue;
        const double values[] = {nan, -nan, inf, -inf};
        store(dtype, problem.inputs[hash(78, i) % static_cast<uint64_t>(ranks)].data(), i, values[hash(79, i) % 4]);
      }
      const Bytes reduced = callFused(group, problem).reduced;
      for (size_t i = 0; i < asked.count(); ++i) {
        const double got = load(dtype, reduced.data(), i);
        INFO("element " << i << " of " << dtypeName(dtype) << ", " << ranks << " ranks");
        if (special(i)) {
          REQUIRE_FALSE(std::isfinite(got));
        } else {
          REQUIRE(got == sumOf(problem, i));
        }
      }
    }
  }
}

TEST_CASE("low precision: zeros, the smallest and the largest numbers", "[lowprecision]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(2, suiteConfig(kSlotBytes));
  const auto both = [&](fcclDataType_t dtype, double first, double second) {
    const FusedCase asked = lowPrecisionCase(fcclPatternAllReduce, dtype, 1, 512);
    FusedProblem problem(asked, 2);
    for (size_t i = 0; i < asked.count(); ++i) {
      store(dtype, problem.inputs[0].data(), i, first);
      store(dtype, problem.inputs[1].data(), i, second);
    }
    const Bytes reduced = callFused(group, problem).reduced;
    const double got = load(dtype, reduced.data(), 0);
    for (size_t i = 0; i < asked.count(); ++i) {
      const double other = load(dtype, reduced.data(), i);
      INFO("element " << i << ": " << first << " + " << second << " is " << other << " and " << got);
      // An element's owner has not rounded its own input.
      REQUIRE((other == got || std::abs(other - got) <= std::abs(got) / 8));
      REQUIRE(std::signbit(other) == std::signbit(got));
    }
    return got;
  };
  for (const fcclDataType_t dtype : kTypes) {
    for (const double first : {0.0, -0.0}) {
      for (const double second : {0.0, -0.0}) {
        const double zero = both(dtype, first, second);
        CHECK((zero == 0 && !std::signbit(zero)));
      }
    }
    CHECK(both(dtype, 1.5, -1.5) == 0);
  }
  CHECK(both(fcclFloat16, 0x1p-24, 0) == 0x1p-24);
  CHECK(both(fcclBfloat16, 0x1p-133, 0) == 0x1p-133);
  CHECK(both(fcclFloat32, 0x1p-135, 0) == 0x1p-135);
  CHECK(both(fcclFloat32, 0x1p-137, 0x1p-137) == 0);
  // In fp16 the sum is infinite, as it is in other strategies; fp32 saturates instead of becoming infinite.
  CHECK(both(fcclFloat16, 60'000, 60'000) == std::numeric_limits<double>::infinity());
  CHECK(both(fcclFloat16, -60'000, -60'000) == -std::numeric_limits<double>::infinity());
  CHECK(both(fcclFloat32, 0x1.cp127, 0) == 0x1.cp127);
  CHECK(both(fcclFloat32, std::numeric_limits<float>::max(), 0) == 0x1.cp127);
}

TEST_CASE("low precision: what is flushed to zero has no sign", "[lowprecision]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(2, suiteConfig(kSlotBytes));
  for (const fcclDataType_t dtype : {fcclFloat32, fcclBfloat16}) {
    const FusedCase asked = lowPrecisionCase(fcclPatternAllReduce, dtype, 1, 1024);
    FusedProblem problem(asked, 2);
    for (size_t i = 0; i < asked.count(); ++i) {
      for (Bytes& input : problem.inputs) store(dtype, input.data(), i, i % 16 == 0 ? 1.0 : -0x1p-30);
    }
    const Bytes reduced = callFused(group, problem).reduced;
    for (size_t i = 0; i < asked.count(); ++i) {
      const double got = load(dtype, reduced.data(), i);
      INFO("element " << i << " of " << dtypeName(dtype));
      REQUIRE(got == (i % 16 == 0 ? 2.0 : 0.0));
      REQUIRE_FALSE(std::signbit(got));
    }
  }
}

TEST_CASE("low precision: beside other strategies in the same staging areas", "[lowprecision]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(3, suiteConfig(kSlotBytes));
  constexpr fcclStrategy_t kStrategies[] = {fcclStrategyLowPrecision, fcclStrategyTwoshot, fcclStrategyOneshot};
  for (uint64_t round = 0; round < 60; ++round) {
    FusedCase asked = lowPrecisionCase(allPatterns()[hash(6, round) % 7], kTypes[round % 3],
                                       static_cast<int64_t>(1 + hash(5, round) % 40), 48);
    asked.strategy = kStrategies[hash(7, round) % 3];
    asked.seed = round + 1;
    FusedProblem problem(asked, 3);
    holdInFp8(problem, round % 2 == 0);
    runFused(group, problem);
  }
}
