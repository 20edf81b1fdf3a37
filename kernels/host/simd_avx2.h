// Packs of 8 elements in AVX2 registers (with F16C). Included by the *_avx2.cc files only.
#pragma once

#include <immintrin.h>

#include "kernels/host/simd.h"

namespace fccl::host {
namespace {

struct Avx2 {
  static constexpr int kLanes = 8;
  static constexpr bool kHasKernelsForTwo = true;

  // From here on the value is in a register (or, where registers are too small, in memory of its own).
  template <class Raw>
  static FCCL_TEAM_FN void pin(Raw& raw) {
    asm volatile("" : "+x"(raw));
  }

  using Floats = VectorOf<float, 8>;
  using Words = VectorOf<uint32_t, 8>;

  static FCCL_TEAM_FN Floats widenBf16(__m128i raw) {
    return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16);
  }
  static FCCL_TEAM_FN __m128i narrowBf16(Floats f) {
    const Words u = (Words)f;
    __m256i rounded = (__m256i)(u + 0x7fffu + ((u >> 16) & 1u));
    const __m256 isNan = _mm256_cmp_ps((__m256)f, (__m256)f, _CMP_UNORD_Q);
    rounded = (__m256i)_mm256_blendv_ps((__m256)rounded, (__m256)(u | 0x400000u), isNan);
    const __m256i high = _mm256_srli_epi32(rounded, 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    return _mm256_castsi256_si128(packed);
  }
  static FCCL_TEAM_FN Floats widenFp16(__m128i raw) { return (Floats)_mm256_cvtph_ps(raw); }
  static FCCL_TEAM_FN __m128i narrowFp16(Floats f) {
    return _mm256_cvtps_ph((__m256)f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }

  static FCCL_TEAM_FN bool anyWordEquals(__m256i raw, uint32_t word) {
    const __m256i equal = _mm256_cmpeq_epi32(raw, _mm256_set1_epi32(static_cast<int>(word)));
    return _mm256_testz_si256(equal, equal) == 0;
  }
  static FCCL_TEAM_FN bool anyWordEquals(__m128i raw, uint32_t word) {
    const __m128i equal = _mm_cmpeq_epi32(raw, _mm_set1_epi32(static_cast<int>(word)));
    return _mm_testz_si128(equal, equal) == 0;
  }
  static FCCL_TEAM_FN __m256i zeroWordsEqual(__m256i raw, uint32_t word) {
    return _mm256_andnot_si256(_mm256_cmpeq_epi32(raw, _mm256_set1_epi32(static_cast<int>(word))), raw);
  }
  static FCCL_TEAM_FN __m128i zeroWordsEqual(__m128i raw, uint32_t word) {
    return _mm_andnot_si128(_mm_cmpeq_epi32(raw, _mm_set1_epi32(static_cast<int>(word))), raw);
  }

  using Raw16 = __m128i;
  using Raw32 = __m256i;
  static FCCL_TEAM_FN void stream(void* to, __m128i v) { _mm_stream_si128(static_cast<__m128i*>(to), v); }
  static FCCL_TEAM_FN void stream(void* to, __m256i v) { _mm256_stream_si256(static_cast<__m256i*>(to), v); }
  static FCCL_TEAM_FN void streamFence() { _mm_sfence(); }

  static FCCL_TEAM_FN __m128i packBytes(Words bytes) {
    const __m256i halves = _mm256_packus_epi32((__m256i)bytes, (__m256i)bytes);
    const __m128i words = _mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0x08));
    return _mm_packus_epi16(words, words);
  }
  static FCCL_TEAM_FN void storeBytes(uint8_t* to, Words bytes) {
    const __m128i packed = packBytes(bytes);
    __builtin_memcpy(to, &packed, 8);
  }
  static FCCL_TEAM_FN void storeNibbles(uint8_t* to, Words nibbles) {
    const __m128i pairs = _mm_maddubs_epi16(packBytes(nibbles), _mm_set1_epi16(0x1001));
    const __m128i packed = _mm_packus_epi16(pairs, pairs);
    __builtin_memcpy(to, &packed, 4);
  }
};

}  // namespace
}  // namespace fccl::host
