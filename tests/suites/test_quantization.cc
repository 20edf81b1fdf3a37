// Quantized outputs where formats end: scales that are bad, blocks without a scale, NaN and Inf, saturation, layouts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/catch.h"
#include "tests/support/fused_case.h"
#include "tests/support/number_formats.h"
#include "tests/support/suite_device.h"

using namespace fccl::test;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

FusedCase nvfp4Case() {
  FusedCase asked;
  asked.pattern = fcclPatternResidualRmsNormOutQuantNvfp4;
  asked.tokens = 3;
  asked.hidden = 64;
  return asked;
}

// Makes n of a row follow `wanted` up to one common factor: the input is 0 and the residual is `wanted`.
void setRow(FusedProblem& problem, size_t row, const std::vector<double>& wanted) {
  const auto hidden = static_cast<size_t>(problem.asked().hidden);
  for (size_t i = 0; i < hidden; ++i) {
    for (Bytes& input : problem.inputs) store(problem.asked().dtype, input.data(), row * hidden + i, 0);
    store(problem.asked().dtype, problem.residual.data(), row * hidden + i, wanted[i % wanted.size()]);
  }
}

bool anyNanScale(const Bytes& scales) {
  return std::any_of(scales.begin(), scales.end(), [](uint8_t byte) { return (byte & 0x7f) == 0x7f; });
}

}  // namespace

TEST_CASE("NVFP4: exact sizes beside guard pages, all layouts", "[quantization]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(2, suiteConfig());
  for (const int64_t tokens : {1, 5, 32, 127, 128, 129}) {
    for (const int64_t hidden : {64, 2880, 11008}) {
      if (tokens * hidden > 500'000) continue;
      for (const fcclScaleLayout_t layout : {fcclScaleSwizzled128x4, fcclScaleSwizzled8x4, fcclScaleLinear}) {
        for (const fcclStrategy_t strategy : {fcclStrategyOneshot, fcclStrategyTwoshot}) {
          if (strategy == fcclStrategyTwoshot && tokens * hidden > 100'000) continue;
          FusedCase asked = nvfp4Case();
          asked.pattern = fcclPatternResidualRmsNormOutQuantNvfp4;
          asked.tokens = tokens;
          asked.hidden = hidden;
          asked.layout = layout;
          asked.strategy = strategy;
          runFused(group, asked);
        }
      }
    }
  }
}

TEST_CASE("NVFP4: every number of blocks per row, padding is zero", "[quantization]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(3, suiteConfig(4096));
  for (int64_t blocks = 1; blocks <= 9; ++blocks) {
    for (const int64_t tokens : {1, 7, 8, 9, 33, 130}) {
      for (const fcclScaleLayout_t layout : {fcclScaleSwizzled128x4, fcclScaleSwizzled8x4, fcclScaleLinear}) {
        FusedCase asked = nvfp4Case();
        asked.tokens = tokens;
        asked.hidden = blocks * 16;
        asked.layout = layout;
        asked.strategy = blocks % 2 == 0 ? fcclStrategyOneshot : fcclStrategyTwoshot;
        runFused(group, asked);
      }
    }
  }
}

TEST_CASE("NVFP4: global scales, good and bad", "[quantization]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(2, suiteConfig());
  for (const fcclDataType_t dtype : {fcclFloat32, fcclFloat16, fcclBfloat16}) {
    for (const float scale : {0.0f, -0.0f, -1.0f, kNan, -kNan, kInfinity, -kInfinity, 1e-38f, 1e-45f, 1e38f, 3.4e38f,
                              1.0f, 448.0f, 2688.0f, 1e-3f, 1e-4f, 3e-4f}) {
      FusedCase asked = nvfp4Case();
      asked.dtype = dtype;
      asked.nvfp4GlobalScale = scale;
      asked.hidden = 160;
      INFO("global scale " << scale);
      const FusedOutputs outputs = runFused(group, asked);
      CHECK(!anyNanScale(outputs.scales));
    }
  }
}

TEST_CASE("NVFP4: blocks of zeros, tiny and huge blocks", "[quantization]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(2, suiteConfig());
  for (const fcclDataType_t dtype : {fcclFloat32, fcclFloat16, fcclBfloat16}) {
    FusedCase asked = nvfp4Case();
    asked.dtype = dtype;
    asked.tokens = 5;
    asked.hidden = 96;
    FusedProblem problem(asked, 2);
    const double tiny = dtype == fcclFloat16 ? 0x1p-24 : 0x1p-133;
    std::vector<double> mixed(96, 0.0);
    for (size_t i = 0; i < 16; ++i) {
      mixed[i] = i % 2 == 0 ? 1.0 : -0.75;          // an ordinary block
      mixed[32 + i] = -0.0;                         // block 2: -0; block 1: 0
      mixed[48 + i] = i == 3 ? tiny : 0;            // one smallest number
      mixed[64 + i] = i % 3 == 0 ? -1e-3 : 2.5e-4;  // scale in e4m3's subnormals
      mixed[80 + i] = i == 15 ? 100 : 0.01;         // an outlier: the others round to zero, signs kept
    }
    setRow(problem, 0, std::vector<double>(1, 0.0));
    setRow(problem, 1, mixed);
    setRow(problem, 2, std::vector<double>(1, -0.0));
    setRow(problem, 4, std::vector<double>(1, 0.0));
    const FusedOutputs outputs = runFused(group, problem);
    CHECK(!anyNanScale(outputs.scales));
    for (const size_t row : {0, 2, 4}) {
      for (size_t i = 0; i < 48; ++i) CHECK(outputs.quant[row * 48 + i] == 0);
      for (int64_t block = 0; block < 6; ++block) {
        CHECK(outputs.scales[scaleOffset(static_cast<int64_t>(row), block, 96, asked.layout)] == 0);
      }
    }
  }
}

TEST_CASE("NVFP4 and FP8: NaN and Inf in some columns", "[quantization]") {
  FCCL_NEED_SUITE_DEVICE();
  // From the weight, so that n is NaN or Inf there and a number elsewhere in the same block.
  RankGroup group(2, suiteConfig());
  for (const fcclFusionPattern_t pattern :
       {fcclPatternResidualRmsNormOutQuantNvfp4, fcclPatternResidualRmsNormOutQuantFp8}) {
    for (const fcclDataType_t dtype : {fcclFloat32, fcclFloat16, fcclBfloat16}) {
      FusedCase asked = nvfp4Case();
      asked.pattern = pattern;
      asked.dtype = dtype;
      asked.hidden = 112;
      FusedProblem problem(asked, 2);
      store(dtype, problem.weight.data(), 3, kNan);
      store(dtype, problem.weight.data(), 20, -kNan);
      store(dtype, problem.weight.data(), 21, kInfinity);
      store(dtype, problem.weight.data(), 38, kInfinity);
      store(dtype, problem.weight.data(), 55, -kInfinity);
      for (size_t i = 64; i < 80; ++i) store(dtype, problem.weight.data(), i, kNan);
      const FusedOutputs outputs = runFused(group, problem);
      CHECK(!anyNanScale(outputs.scales));
    }
  }
}

TEST_CASE("FP8 and NVFP4: rows of NaN, Inf, zeros and subnormals", "[quantization]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(3, suiteConfig());
  for (const fcclFusionPattern_t pattern : allPatterns()) {
    for (const fcclDataType_t dtype : {fcclFloat32, fcclFloat16, fcclBfloat16}) {
      FusedCase asked;
      asked.pattern = pattern;
      asked.dtype = dtype;
      asked.tokens = 24;
      asked.hidden = 96;
      asked.data = DataKind::kSpecial;
      asked.strategy = pattern % 2 == 0 ? fcclStrategyOneshot : fcclStrategyTwoshot;
      runFused(group, asked);
    }
  }
}

TEST_CASE("FP8: saturation, ties and scales", "[quantization]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(2, suiteConfig());
  for (const float scale :
       {1.0f, 1e-3f, 1.0f / 448.0f, 3e-3f, 1e30f, 1e-30f, 0.1f, 0x1p-6f, 0x1p-12f, 0x1.fffffep-3f}) {
    for (const fcclDataType_t dtype : {fcclFloat32, fcclBfloat16}) {
      FusedCase asked;
      asked.pattern = fcclPatternResidualRmsNormOutQuantFp8;
      asked.dtype = dtype;
      asked.tokens = 4;
      asked.hidden = 256;
      asked.fp8DequantScale = scale;
      FusedProblem problem(asked, 2);
      INFO("scale " << scale);
      const FusedOutputs outputs = runFused(group, problem);
      // Finite n never gives a NaN code.
      CHECK(!anyNanScale(outputs.quant));
    }
  }
}

TEST_CASE("FP8: every code and every tie comes out as it should", "[quantization]") {
  FCCL_NEED_SUITE_DEVICE();
  // n follows the residual with one factor, k; weights that undo it are not exact, so the reference is applied to n.
  // With 127 * 2 steps in a row all codes are met many times over.
  RankGroup group(2, suiteConfig());
  FusedCase asked;
  asked.pattern = fcclPatternResidualRmsNormOutQuantFp8;
  asked.dtype = fcclFloat32;
  asked.tokens = 2;
  asked.hidden = 1016;
  FusedProblem problem(asked, 2);
  std::vector<double> values;
  for (uint32_t code = 0; code < 254; ++code) {
    const uint32_t magnitude = code / 2;
    const double low = kE4m3.decode(magnitude);
    const double high = magnitude < 126 ? kE4m3.decode(magnitude + 1) : 480;
    const double value = code % 2 == 0 ? low : low + (high - low) / 2;
    values.push_back(value);
    values.push_back(-value);
    values.push_back(value * 1.0000001);
    values.push_back(value * 0.9999999);
  }
  setRow(problem, 0, values);
  for (size_t i = 0; i < 1016; ++i) store(fcclFloat32, problem.weight.data(), i, 1.0);
  double squares = 0;
  for (const double value : values) squares += value * value;
  // dequant scale ~ k, so that n / scale is the value again, a tie where k was a power of two.
  FusedCase scaled = asked;
  scaled.fp8DequantScale = static_cast<float>(1 / std::sqrt(squares / 1016 + 1e-5));
  FusedProblem again(scaled, 2);
  again.inputs = problem.inputs;
  again.residual = problem.residual;
  again.weight = problem.weight;
  const FusedOutputs outputs = runFused(group, again);
  std::vector<bool> seen(256, false);
  for (size_t i = 0; i < 1016; ++i) seen[outputs.quant[i]] = true;
  for (uint32_t code = 0; code < 256; ++code) {
    INFO("code " << code);
    CHECK(seen[code] == ((code & 0x7f) != 0x7f));
  }
}

TEST_CASE("rows that cancel to zero, at the first, a middle and the last token", "[quantization]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(3, suiteConfig());
  for (const fcclFusionPattern_t pattern : allPatterns()) {
    for (const fcclStrategy_t strategy : {fcclStrategyOneshot, fcclStrategyTwoshot, fcclStrategyMinLatency}) {
      FusedCase asked;
      asked.pattern = pattern;
      asked.strategy = strategy;
      asked.dtype = fcclBfloat16;
      asked.tokens = 9;
      asked.hidden = 160;
      FusedProblem problem(asked, 3);
      std::vector<const void*> at;
      for (const Bytes& input : problem.inputs) at.push_back(input.data());
      const Bytes sum = referenceAllReduce(asked.dtype, fcclSum, at, asked.count());
      for (const size_t row : {0, 4, 8}) {
        for (size_t i = row * 160; i < (row + 1) * 160; ++i) {
          if (traits(pattern).residual) {
            store(asked.dtype, problem.residual.data(), i, -load(asked.dtype, sum.data(), i));
          } else {
            for (Bytes& input : problem.inputs) store(asked.dtype, input.data(), i, 0);
          }
        }
      }
      const FusedOutputs outputs = runFused(group, problem);
      for (const size_t row : {0, 4, 8}) {
        for (size_t i = row * 160; i < (row + 1) * 160 && !outputs.norm.empty(); ++i) {
          REQUIRE(load(asked.dtype, outputs.norm.data(), i) == 0);
        }
      }
    }
  }
}

namespace {

// n as the library rounds it, for a row that later runs repeat with other scales.
std::vector<float> normOf(RankGroup& group, const FusedCase& asked) {
  const FusedOutputs outputs = runFused(group, asked);
  std::vector<float> n(static_cast<size_t>(asked.hidden));
  for (size_t i = 0; i < n.size(); ++i) n[i] = static_cast<float>(load(asked.dtype, outputs.norm.data(), i));
  return n;
}

// The first fp32 within 40 steps of `around` for which `differs`, appended to `found`.
template <class Differs>
void scan(double around, std::vector<float>* found, const Differs& differs) {
  auto value = static_cast<float>(around);
  for (int i = 0; i < 40; ++i) value = std::nextafter(value, 0.0f);
  for (int i = 0; i < 80; ++i, value = std::nextafter(value, kInfinity)) {
    if (differs(value)) return found->push_back(value);
  }
}

FusedCase orderCase(fcclFusionPattern_t pattern) {
  FusedCase asked;
  asked.pattern = pattern;
  asked.dtype = fcclFloat32;
  asked.tokens = 1;
  asked.hidden = 1024;
  return asked;
}

}  // namespace

// Scales that put a product next to a tie, so that another order of multiplication and division, or a rounded
// reciprocal in place of a division, ends on the other side of it.
TEST_CASE("NVFP4: where the order of the operations decides a code", "[quantization]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(2, suiteConfig());
  FusedCase asked = orderCase(fcclPatternResidualRmsNormOutQuantNvfp4);
  const std::vector<float> n = normOf(group, asked);
  std::vector<float> scales;
  std::vector<float> elements;
  for (size_t block = 0; block < n.size() / 16; ++block) {
    float amax = 0;
    for (size_t i = block * 16; i < block * 16 + 16; ++i) amax = std::max(amax, std::fabs(n[i]));
    const auto scaleOf = [&](float g) { return kE4m3.encode(g * amax / 6.0f); };
    const auto code = static_cast<uint32_t>(0x20 + block);
    const double border = (kE4m3.decode(code) + kE4m3.decode(code + 1)) / 2;
    scan(border * 6 / amax, &scales, [&](float g) { return scaleOf(g) != kE4m3.encode(g * (amax * (1.0f / 6.0f))); });
    scan(border * 6 / amax, &scales, [&](float g) { return scaleOf(g) != kE4m3.encode(g * (amax / 6.0f)); });
    for (size_t i = block * 16; i < block * 16 + 16; ++i) {
      for (const double tie : {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0}) {
        const auto scale = static_cast<float>(kE4m3.decode(code));
        scan(tie * scale / std::fabs(n[i]), &elements, [&](float g) {
          return scaleOf(g) == code && kE2m1.encode(n[i] * (g / scale)) != kE2m1.encode(n[i] * (g * (1.0f / scale)));
        });
      }
    }
  }
  CHECK(scales.size() > 5);
  CHECK(elements.size() > 5);
  scales.insert(scales.end(), elements.begin(), elements.end());
  for (const float g : scales) {
    asked.nvfp4GlobalScale = g;
    runFused(group, asked);
  }
}

TEST_CASE("FP8: where the order of the operations decides a code", "[quantization]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(2, suiteConfig());
  FusedCase asked = orderCase(fcclPatternResidualRmsNormOutQuantFp8);
  const std::vector<float> n = normOf(group, asked);
  std::vector<float> scales;
  for (size_t i = 0; i < n.size() && scales.size() < 100; ++i) {
    const auto code = static_cast<uint32_t>(0x30 + i % 64);
    const double tie = (kE4m3.decode(code) + kE4m3.decode(code + 1)) / 2;
    scan(std::fabs(n[i]) / tie, &scales,
         [&](float scale) { return kE4m3.encode(n[i] * (1.0f / scale)) != kE4m3.encode(n[i] / scale); });
  }
  CHECK(scales.size() > 5);
  for (const float scale : scales) {
    asked.fp8DequantScale = scale;
    runFused(group, asked);
  }
}
