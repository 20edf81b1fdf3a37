#include "nemotron_h/passes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/separate_passes.h"
#include "nemotron_h/data.h"
#include "nemotron_h/nvfp4.h"

// The library picks AVX2 or AVX-512 when it is loaded; what it is measured against shall have the same means. The
// loader resolves the clones before a sanitizer is ready, so they are left out there.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define FOR_EACH_ISA [[gnu::target_clones("default", "avx2", "arch=x86-64-v4")]]
#else
#define FOR_EACH_ISA
#endif

namespace {

// e4m3 of a value that is not negative: nearest even, saturating at 448.
EXAMPLES_INLINE uint32_t encodeE4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  // Below 2^-6 codes are multiples of 2^-9: adding 2^14 leaves the rounded multiple in the low bits.
  const uint32_t subnormal = std::bit_cast<uint32_t>(value + 16384.0f) - std::bit_cast<uint32_t>(16384.0f);
  const uint32_t normal = ((bits + 0x7ffffu + ((bits >> 20) & 1u)) >> 20) - (120u << 3);
  return value < 0x1p-6f ? subnormal : std::min(normal, 0x7eu);
}

EXAMPLES_INLINE float decodeE4m3(uint32_t code) { return std::bit_cast<float>(code << 20) * 0x1p120f; }

// e2m1: nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6, ties to the even code. Each comparison that holds is one step up.
EXAMPLES_INLINE uint32_t encodeE2m1(float value) {
  const float a = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0x7fffffffu);
  const uint32_t steps = static_cast<uint32_t>(a > 0.25f) + static_cast<uint32_t>(a >= 0.75f) +
                         static_cast<uint32_t>(a > 1.25f) + static_cast<uint32_t>(a >= 1.75f) +
                         static_cast<uint32_t>(a > 2.5f) + static_cast<uint32_t>(a >= 3.5f) +
                         static_cast<uint32_t>(a > 5.0f);
  return steps | ((std::bit_cast<uint32_t>(value) >> 28) & 8u);
}

}  // namespace

FOR_EACH_ISA void fillNormal(Bf16* out, int64_t count, uint32_t key) {
  for (int64_t i = 0; i < count; ++i) out[i] = Bf16(unitNormal(key, static_cast<uint32_t>(i)));
}

FOR_EACH_ISA void fillPartialSums(Bf16* out, int64_t first, int64_t count, uint32_t key, int ranks) {
  const float inverseSqrtRanks = 1.0f / std::sqrt(static_cast<float>(ranks));
  for (int64_t i = 0; i < count; ++i) out[i] = partialSum(key, static_cast<uint32_t>(first + i), inverseSqrtRanks);
}

FOR_EACH_ISA void fillNormWeights(Bf16* out, int64_t count, uint32_t key) {
  for (int64_t i = 0; i < count; ++i) out[i] = normWeight(key, static_cast<uint32_t>(i));
}

FOR_EACH_ISA void addPass(const Bf16* reduced, const Bf16* residual, Bf16* residualOut, int64_t count) {
  addResidual(reduced, residual, residualOut, count);
}

FOR_EACH_ISA void normPass(const Bf16* input, const Bf16* weight, float eps, Bf16* output, int64_t tokens,
                           int64_t hidden) {
  rmsNorm(input, weight, eps, output, tokens, hidden);
}

FOR_EACH_ISA void quantPass(const Bf16* norm, float globalScale, uint8_t* quantOut, uint8_t* scaleOut,
                            size_t scaleBytes, int64_t tokens, int64_t hidden) {
  std::memset(scaleOut, 0, scaleBytes);
  const int64_t blocks = hidden / kBlock;
  std::vector<uint16_t> largest(static_cast<size_t>(blocks));
  std::vector<float> factors(largest.size()), scaled(static_cast<size_t>(hidden));
  std::vector<uint8_t> scales(largest.size()), codes(static_cast<size_t>(hidden));
  for (int64_t row = 0; row < tokens; ++row) {
    const Bf16* __restrict values = norm + row * hidden;
    for (int64_t block = 0; block < blocks; ++block) {
      uint16_t most = 0;  // magnitudes of bf16 are ordered as their bits are
      for (int64_t i = block * kBlock; i < (block + 1) * kBlock; ++i) {
        most = std::max(most, static_cast<uint16_t>(values[i].bits() & 0x7fffu));
      }
      largest[block] = most;
    }
    for (int64_t block = 0; block < blocks; ++block) {
      const uint32_t scale = encodeE4m3(globalScale * static_cast<float>(Bf16::fromBits(largest[block])) / 6.0f);
      scales[block] = static_cast<uint8_t>(scale);
      factors[block] = scale == 0 ? 0.0f : globalScale / decodeE4m3(scale);
    }
    for (int64_t block = 0; block < blocks; ++block) scaleOut[scaleOffset(row, block, hidden)] = scales[block];
    for (int64_t block = 0; block < blocks; ++block) {
      for (int64_t i = block * kBlock; i < (block + 1) * kBlock; ++i)
        scaled[i] = static_cast<float>(values[i]) * factors[block];
    }
    for (int64_t i = 0; i < hidden; ++i) codes[i] = static_cast<uint8_t>(encodeE2m1(scaled[i]));
    uint8_t* __restrict packed = quantOut + row * hidden / 2;
    for (int64_t i = 0; i < hidden / 2; ++i) packed[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
  }
}
