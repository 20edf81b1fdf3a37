#include "nemotron_h/verify.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>

#include "nemotron_h/data.h"
#include "nemotron_h/nvfp4.h"
#include "nemotron_h/passes.h"

namespace {

std::string sentence(const char* what, int64_t row, int64_t column, double expected, double got) {
  std::array<char, 200> text;
  std::snprintf(text.data(), text.size(), "row %lld, column %lld: %s is %.9g, expected %.9g",
                static_cast<long long>(row), static_cast<long long>(column), what, got, expected);
  return text.data();
}

// Distance between neighbouring bf16 numbers at this magnitude: 2^-7 of the power of two below it.
double bf16Ulp(double value) {
  const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(value)) & 0x7f800000u;
  return std::max(static_cast<double>(std::bit_cast<float>(bits)), 0x1p-126) * 0x1p-7;
}

// Nearest code of a table of rising magnitudes, ties to the even code, saturating: the definition, not an algorithm.
template <size_t N>
uint8_t nearestCode(const std::array<double, N>& magnitudes, double value) {
  const size_t above =
      static_cast<size_t>(std::lower_bound(magnitudes.begin(), magnitudes.end(), value) - magnitudes.begin());
  if (above == N) return static_cast<uint8_t>(N - 1);
  if (above == 0) return 0;
  const double toLower = value - magnitudes[above - 1];
  const double toUpper = magnitudes[above] - value;
  const bool up = toUpper < toLower || (toUpper == toLower && above % 2 == 0);
  return static_cast<uint8_t>(up ? above : above - 1);
}

constexpr std::array<double, 8> kE2m1 = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

// Codes 0 to 0x7e; 0x7f is NaN.
const std::array<double, 127>& e4m3Table() {
  static const std::array<double, 127> kTable = [] {
    std::array<double, 127> table;
    for (int code = 0; code < 127; ++code) {
      const int exponent = code >> 3;
      const double mantissa = (code & 7) / 8.0;
      table[static_cast<size_t>(code)] =
          exponent == 0 ? std::ldexp(mantissa, -6) : std::ldexp(1 + mantissa, exponent - 7);
    }
    return table;
  }();
  return kTable;
}

std::optional<std::string> findSumMismatch(const CallResult& result) {
  const auto ranks = static_cast<int>(result.partialKeys->size());
  const auto hidden = static_cast<size_t>(result.hidden);
  std::vector<Bf16> partials(hidden);
  std::vector<float> sums(hidden);
  std::vector<double> exact(hidden), magnitudes(hidden);
  for (int64_t row = 0; row < result.tokens; ++row) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    std::fill(exact.begin(), exact.end(), 0.0);
    std::fill(magnitudes.begin(), magnitudes.end(), 0.0);
    for (const uint32_t key : *result.partialKeys) {
      fillPartialSums(partials.data(), row * result.hidden, result.hidden, key, ranks);
      for (size_t i = 0; i < hidden; ++i) {
        const auto partial = static_cast<float>(partials[i]);
        sums[i] += partial;
        exact[i] += static_cast<double>(partial);
        magnitudes[i] += static_cast<double>(std::abs(partial));
      }
    }
    const Bf16* residualIn = result.residual + row * result.hidden;
    const Bf16* residualOut = result.residualOut + row * result.hidden;
    for (size_t i = 0; i < hidden; ++i) {
      const auto column = static_cast<int64_t>(i);
      const auto sum = static_cast<float>(Bf16(sums[i]));
      const double allowed = bf16Ulp(exact[i]) / 2 + ranks * 0x1p-24 * magnitudes[i];
      if (std::abs(static_cast<double>(sum) - exact[i]) > allowed) {
        return sentence("the fp32 sum of the reference, rounded,", row, column, exact[i], static_cast<double>(sum));
      }
      const Bf16 residual(sum + static_cast<float>(residualIn[i]));
      if (residual.bits() != residualOut[i].bits()) {
        return sentence("residualOut", row, column, static_cast<double>(static_cast<float>(residual)),
                        static_cast<double>(static_cast<float>(residualOut[i])));
      }
    }
  }
  return std::nullopt;
}

std::optional<std::string> findNormMismatch(const CallResult& result) {
  for (int64_t row = 0; row < result.tokens; ++row) {
    const Bf16* residual = result.residualOut + row * result.hidden;
    const Bf16* norm = result.norm + row * result.hidden;
    double squares = 0;
    for (int64_t i = 0; i < result.hidden; ++i) {
      const auto element = static_cast<double>(static_cast<float>(residual[i]));
      squares += element * element;
    }
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(result.hidden) + static_cast<double>(kEps));
    for (int64_t i = 0; i < result.hidden; ++i) {
      const double expected = static_cast<double>(static_cast<float>(residual[i])) * scale *
                              static_cast<double>(static_cast<float>(result.weight[i]));
      const auto got = static_cast<double>(static_cast<float>(norm[i]));
      // Written so that NaN fails.
      if (!(std::abs(got - expected) <= bf16Ulp(expected) / 2 + 0x1p-16 * std::abs(expected))) {
        return sentence("normOut", row, i, expected, got);
      }
    }
  }
  return std::nullopt;
}

std::optional<std::string> findQuantMismatch(const CallResult& result) {
  std::vector<uint8_t> scales(result.scaleBytes);  // zero where there is padding
  for (int64_t row = 0; row < result.tokens; ++row) {
    for (int64_t block = 0; block < result.hidden / kBlock; ++block) {
      const Bf16* norm = result.norm + row * result.hidden + block * kBlock;
      float largest = 0;
      for (int64_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::abs(static_cast<float>(norm[i])));
      const uint8_t scale = nearestCode(e4m3Table(), static_cast<double>(kNvfp4GlobalScale * largest / 6.0f));
      scales[static_cast<size_t>(scaleOffset(row, block, result.hidden))] = scale;
      const float factor = scale == 0 ? 0.0f : kNvfp4GlobalScale / static_cast<float>(e4m3Table()[scale]);
      for (int64_t i = 0; i < kBlock; ++i) {
        const float scaled = static_cast<float>(norm[i]) * factor;
        const int sign = std::signbit(scaled) ? 8 : 0;
        const int code = sign | nearestCode(kE2m1, static_cast<double>(std::abs(scaled)));
        const int64_t column = block * kBlock + i;
        const uint8_t packed = result.quant[(row * result.hidden + column) / 2];
        const int got = column % 2 == 0 ? packed & 15 : packed >> 4;
        if (got != code) return sentence("the e2m1 code in quantOut", row, column, code, got);
      }
    }
  }
  const auto [expected, got] = std::mismatch(scales.begin(), scales.end(), result.scales);
  if (expected == scales.end()) return std::nullopt;
  return sentence("the byte of scaleOut (row 0, column: its offset)", 0, expected - scales.begin(), *expected, *got);
}

}  // namespace

std::optional<std::string> findMismatch(const CallResult& result) {
  if (auto mismatch = findSumMismatch(result)) return mismatch;
  if (auto mismatch = findNormMismatch(result)) return mismatch;
  return result.quant == nullptr ? std::nullopt : findQuantMismatch(result);
}
