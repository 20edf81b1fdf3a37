// Packs of 16 elements in AVX-512 registers (F, BW, DQ, VL, BF16). Included by the *_avx512.cc files only.
#pragma once

#include <immintrin.h>

#include "kernels/host/simd.h"

namespace fccl::host {
namespace {

struct Avx512 {
  static constexpr int kLanes = 16;
  static constexpr bool kHasKernelsForTwo = true;

  // From here on the value is in a register (or, where registers are too small, in memory of its own).
  template <class Raw>
  static FCCL_TEAM_FN void pin(Raw& raw) {
    asm volatile("" : "+v"(raw));
  }

  using Floats = VectorOf<float, 16>;
  using Words = VectorOf<uint32_t, 16>;

  static FCCL_TEAM_FN Floats widenBf16(__m256i raw) {
    return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16);
  }
  // vcvtneps2bf16 flushes subnormals, so a pack that holds one takes the integer path.
  static FCCL_TEAM_FN __m256i narrowBf16(Floats f) {
    if (__builtin_expect(_mm512_fpclass_ps_mask((__m512)f, 0x20) != 0, 0)) return narrowBf16Exact(f);
    return (__m256i)_mm512_cvtneps_pbh((__m512)f);
  }
  static __attribute__((noinline, cold)) __m256i narrowBf16Exact(Floats f) {
    const Words u = (Words)f;
    __m512i rounded = (__m512i)((u + 0x7fffu + ((u >> 16) & 1u)));
    const __mmask16 isNan = _mm512_cmp_ps_mask((__m512)f, (__m512)f, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, isNan, (__m512i)u, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
  }
  static FCCL_TEAM_FN Floats widenFp16(__m256i raw) { return (Floats)_mm512_cvtph_ps(raw); }
  static FCCL_TEAM_FN __m256i narrowFp16(Floats f) {
    return _mm512_cvtps_ph((__m512)f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }

  static FCCL_TEAM_FN bool anyWordEquals(__m512i raw, uint32_t word) {
    return _mm512_cmpeq_epi32_mask(raw, _mm512_set1_epi32(static_cast<int>(word))) != 0;
  }
  static FCCL_TEAM_FN bool anyWordEquals(__m256i raw, uint32_t word) {
    return _mm256_cmpeq_epi32_mask(raw, _mm256_set1_epi32(static_cast<int>(word))) != 0;
  }
  static FCCL_TEAM_FN __m512i zeroWordsEqual(__m512i raw, uint32_t word) {
    return _mm512_maskz_mov_epi32(_mm512_cmpneq_epi32_mask(raw, _mm512_set1_epi32(static_cast<int>(word))), raw);
  }
  static FCCL_TEAM_FN __m256i zeroWordsEqual(__m256i raw, uint32_t word) {
    return _mm256_maskz_mov_epi32(_mm256_cmpneq_epi32_mask(raw, _mm256_set1_epi32(static_cast<int>(word))), raw);
  }

  using Raw16 = __m256i;
  using Raw32 = __m512i;
  static FCCL_TEAM_FN void stream(void* to, __m256i v) { _mm256_stream_si256(static_cast<__m256i*>(to), v); }
  static FCCL_TEAM_FN void stream(void* to, __m512i v) { _mm512_stream_si512(static_cast<__m512i*>(to), v); }
  static FCCL_TEAM_FN void streamFence() { _mm_sfence(); }

  // The low byte of each lane, packed.
  static FCCL_TEAM_FN void storeBytes(uint8_t* to, Words bytes) {
    const __m128i packed = _mm512_cvtepi32_epi8((__m512i)bytes);
    __builtin_memcpy(to, &packed, 16);
  }
  // The low nibble of each lane, packed, element 2i low.
  static FCCL_TEAM_FN void storeNibbles(uint8_t* to, Words nibbles) {
    const __m128i bytes = _mm512_cvtepi32_epi8((__m512i)nibbles);
    const __m128i pairs = _mm_maddubs_epi16(bytes, _mm_set1_epi16(0x1001));
    const __m128i packed = _mm_packus_epi16(pairs, pairs);
    __builtin_memcpy(to, &packed, 8);
  }
};

}  // namespace
}  // namespace fccl::host
