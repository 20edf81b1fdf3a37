// Stand-ins for what the model's own GEMMs and weights would be, computed from a seed so that every rank knows them
// all.
#ifndef EXAMPLES_NEMOTRON_H_DATA_H_
#define EXAMPLES_NEMOTRON_H_DATA_H_

#include <cmath>
#include <cstdint>

#include "common/bf16.h"
#include "common/separate_passes.h"

// A mixer of 32-bit words (xor-shift and multiply, twice); each step can be undone, so different words stay different.
constexpr uint32_t mixBits(uint32_t word) {
  word = (word ^ (word >> 16)) * 0x7feb352du;
  word = (word ^ (word >> 15)) * 0x846ca68bu;
  return word ^ (word >> 16);
}

// One stream of numbers per (seed, step, call, rank).
constexpr uint32_t streamKey(uint32_t seed, uint32_t step, uint32_t call, uint32_t rank) {
  return mixBits(mixBits(mixBits(mixBits(seed) + step) + call) + rank);
}

// Element `index` of a stream: the sum of four uniform numbers, centred, with unit variance; close to normal, in a few
// integer operations that vectorise, and the same on every machine.
EXAMPLES_INLINE float unitNormal(uint32_t key, uint32_t index) {
  const uint32_t a = mixBits((index * 0x9e3779b1u) ^ key);
  const uint32_t b = mixBits(a + 0x9e3779b9u);
  const auto sum = static_cast<int32_t>((a & 0xffffu) + (a >> 16) + (b & 0xffffu) + (b >> 16));
  constexpr float kSqrtOf3 = 1.7320508f;
  return static_cast<float>(sum - 2 * 65535) * (kSqrtOf3 / 65536.0f);
}

// A rank's partial sum of a row-parallel GEMM: it adds K/R of the K products of unit normals over sqrt(K), so it is
// normal with variance 1/R, independent of the other ranks', and the sum over ranks has unit variance.
EXAMPLES_INLINE Bf16 partialSum(uint32_t key, uint32_t index, float inverseSqrtRanks) {
  return Bf16(unitNormal(key, index) * inverseSqrtRanks);
}

// Norm weights as trained models have them: around 1.
EXAMPLES_INLINE Bf16 normWeight(uint32_t key, uint32_t index) { return Bf16(1.0f + 0.1f * unitNormal(key, index)); }

// NVFP4's global scale maps the largest magnitude of a tensor to 448 * 6. Norms of these data stay below 8.
constexpr float kNvfp4GlobalScale = 448.0f * 6.0f / 8.0f;

constexpr float kEps = 1e-5f;

#endif  // EXAMPLES_NEMOTRON_H_DATA_H_
