// FP8 and NVFP4 codes of the packs in registers: the bytes that kernels/formats.h defines, on every architecture.
// All threads of a warp call together; packs outside of the row are zeros that are not stored.
#pragma once

#include <cuda_fp8.h>

#include "kernels/call.h"
#include "kernels/cuda/packs.cuh"
#include "kernels/formats.h"

namespace fccl::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
constexpr bool kHasFp8Conversion = true;
#else
constexpr bool kHasFp8Conversion = false;
#endif

// e4m3 of two floats. The instruction saturates and rounds as formats.h does. It gives NaN as 0x7f, whatever its sign;
// products on the GPU are NaN without a sign anyway.
FCCL_TEAM_FN uint32_t e4m3Pair(float low, float high) {
  if constexpr (kHasFp8Conversion) {
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
  } else {
    return static_cast<uint32_t>(e4m3FromFloat(low)) | static_cast<uint32_t>(e4m3FromFloat(high)) << 8;
  }
}

// Correctly rounded x / 6 where the quotient is normal, by one correction of the product with the rounded reciprocal.
FCCL_TEAM_FN float sixth(float x) {
  constexpr float kSixth = 1.0f / 6.0f;
  const float q = __fmul_rn(x, kSixth);
  return __fmaf_rn(__fmaf_rn(-6.0f, q, x), kSixth, q);
}

// 1 / b to about one ulp, and with it a / b, correctly rounded where all intermediate results are normal: the quotient
// is corrected twice.
FCCL_TEAM_FN float reciprocal(float b) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
  return __fmaf_rn(__fmaf_rn(-b, r, 1.0f), r, r);
}
FCCL_TEAM_FN float divideNormal(float a, float b, float reciprocalOfB) {
  float q = __fmul_rn(a, reciprocalOfB);
  q = __fmaf_rn(__fmaf_rn(-b, q, a), reciprocalOfB, q);
  return __fmaf_rn(__fmaf_rn(-b, q, a), reciprocalOfB, q);
}

// nvfp4ScaleByte() and nvfp4Multiplier() of a block without NaN, for a global scale between 2^-60 and 2^60.
FCCL_TEAM_FN uint32_t fastScaleByte(float global, float amax) {
  // Above 2^12 the scale saturates, whatever it is; infinity must not meet the correction. Below 2^-10 it rounds to 0,
  // whether the quotient is exact or not, and so it is below 0.
  const float product = fminf(fmaxf(__fmul_rn(global, amax), 0.0f), 4096.0f);
  return e4m3Pair(sixth(product), 0.0f) & 0xffu;
}
// No branch, so that those of several packs overlap.
FCCL_TEAM_FN float fastMultiplier(float global, uint32_t scaleByte) {
  // The code's bits moved to an fp32 with exponent bias 7 instead of 127: exact, subnormal codes too.
  const float scale = __fmul_rn(__uint_as_float(max(scaleByte, 1u) << 20), 0x1p120f);
  const float quotient = divideNormal(global, scale, reciprocal(scale));
  return scaleByte == 0 ? 0.0f : quotient;
}

// The e2m1 code of |v| < 7 in the low bits (other bits: anything): adding M = 2^(exponent of max(|v|, 1) + 22) rounds
// |v| to a multiple of 2^(exponent - 1), the step of its binade, ties to even. M carries 6 more, so that the sum of its
// low bits and of its exponent's is the code.
FCCL_TEAM_FN uint32_t e2m1Magnitude(float v) {
  const float a = fabsf(v);
  const uint32_t exponent = __float_as_uint(fmaxf(a, 1.0f)) & 0x7f800000u;
  const uint32_t sum = __float_as_uint(__fmaf_rn(__uint_as_float(exponent), 0x1p22f + 3.0f, a));
  return sum + (sum >> 22);
}

// Where codes go beside the caller's memory: nowhere.
struct NoWire {
  static constexpr bool kSends = false;
};

// Wire: fp8(p, codes), nvfp4(p, codes, scale byte), by all threads of a warp.
template <class D, bool nvfp4, class Wire = NoWire>
class PackQuantizer {
  static constexpr int kElements = D::kElements;
  static constexpr int kLanes = kNvfp4Block / kElements;  // that share a block

 public:
  FCCL_TEAM_FN PackQuantizer(const RowArgs& a, int64_t row, float scale, Wire wire = {})
      : a_(a),
        out_(a.quantOut + static_cast<uint64_t>(row) * static_cast<uint32_t>(nvfp4 ? a.cols / 2 : a.cols)),
        scale_(scale),
        wire_(wire) {
    if constexpr (nvfp4) placeScales(static_cast<uint32_t>(a.firstRow + row));
  }

  FCCL_TEAM_FN void fp8Pack(Pack p, Floats<kElements> f) const {
    uint32_t codes[kElements / 4];
#pragma unroll
    for (int i = 0; i < kElements; i++) f.v[i] = __fmul_rn(f.v[i], scale_);
#pragma unroll
    for (int i = 0; i < kElements / 4; i++) {
      const float* v = f.v + 4 * i;
      codes[i] = e4m3Pair(v[0], v[1]) | e4m3Pair(v[2], v[3]) << 16;
    }
    storeFp8(p, codes);
    if constexpr (Wire::kSends) wire_.fp8(p, codes);
  }
  FCCL_TEAM_FN void storeFp8(Pack p, const uint32_t (&codes)[kElements / 4]) const {
    uint8_t* out = out_ + static_cast<uint32_t>(p.index) * kElements;
    if (p.elements == kElements && reinterpret_cast<uintptr_t>(out) % kElements == 0) [[likely]] {
      if constexpr (kElements == 8) *reinterpret_cast<uint2*>(out) = make_uint2(codes[0], codes[1]);
      if constexpr (kElements == 4) *reinterpret_cast<uint32_t*>(out) = codes[0];
      return;
    }
#pragma unroll
    for (int i = 0; i < kElements; i++) {
      if (i < p.elements) out[i] = static_cast<uint8_t>(codes[i / 4] >> (i % 4 * 8));
    }
  }

  // A row's packs of this thread. Each is a long chain of dependent instructions; side by side they overlap. Lanes that
  // share a block of 16 columns are neighbours.
  template <int packs>
  FCCL_TEAM_FN void nvfp4Packs(const Pack (&p)[packs], const Raw (&n)[packs]) const {
    uint32_t bytes[packs];
    float multipliers[packs];
    const float magnitude = fabsf(scale_);
    bool plain = magnitude > 0x1p-60f && magnitude < 0x1p60f;
#pragma unroll
    for (int k = 0; k < packs; k++) {
      const uint32_t most = largestBits(n[k]);
      const float amax = D::widen(Raw{{most, 0, 0, 0}}).v[0];
      bytes[k] = fastScaleByte(scale_, amax);
      multipliers[k] = fastMultiplier(scale_, bytes[k]);
      plain = plain && most <= D::kInfinityBits && amax * multipliers[k] < 6.99f;
    }
    uint32_t codes[packs];
    if (__all_sync(0xffffffffu, plain)) [[likely]] {
#pragma unroll
      for (int k = 0; k < packs; k++) {
        const uint32_t fast = fastCodes(n[k], D::widen(n[k]), multipliers[k]);
        codes[k] = bytes[k] == 0 ? 0 : fast;
      }
    } else {
#pragma unroll
      for (int k = 0; k < packs; k++) codes[k] = anyCodes(D::widen(n[k]), &bytes[k]);
    }
#pragma unroll
    for (int k = 0; k < packs; k++) {
      storeNvfp4(p[k], codes[k], bytes[k]);
      if constexpr (Wire::kSends) wire_.nvfp4(p[k], codes[k], bytes[k]);
    }
  }
  // By all threads of a warp.
  FCCL_TEAM_FN void storeNvfp4(Pack p, uint32_t codes, uint32_t scaleByte) const {
    storeCodes(p, codes);
    storeScales(p, scaleByte);
  }

 private:
  // The largest magnitude of the block, as bits: magnitudes order like their bits, NaN above infinity.
  static FCCL_TEAM_FN uint32_t largestBits(Raw n) {
    uint32_t most = 0;
    if constexpr (kElements == 8) {
      uint32_t two = 0;
#pragma unroll
      for (int i = 0; i < 4; i++) two = __vmaxu2(two, n.words[i] & 0x7fff7fffu);
      most = max(two & 0xffffu, two >> 16);
    } else {
#pragma unroll
      for (int i = 0; i < 4; i++) most = max(most, n.words[i] & 0x7fffffffu);
    }
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
    return most;
  }

  // Scale and codes of a block with whatever values, for whatever global scale.
  FCCL_TEAM_FN uint32_t anyCodes(const Floats<kElements>& f, uint32_t* byte) const {
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < kElements; i++) amax = fmaxf(amax, fabsf(f.v[i]));  // fmaxf passes over NaN
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, step));
    *byte = nvfp4ScaleByte(scale_, amax);
    if (*byte == 0) return 0;
    const float multiplier = nvfp4Multiplier(scale_, static_cast<uint8_t>(*byte));
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < kElements; i++) {
      codes |= static_cast<uint32_t>(e2m1FromFloat(__fmul_rn(f.v[i], multiplier))) << (4 * i);
    }
    return codes;
  }

  // Codes of elements below 7 after multiplication, element 0 in the lowest bits.
  static FCCL_TEAM_FN uint32_t fastCodes(Raw n, const Floats<kElements>& f, float multiplier) {
    uint32_t magnitudes[kElements];
#pragma unroll
    for (int i = 0; i < kElements; i++) magnitudes[i] = e2m1Magnitude(__fmul_rn(f.v[i], multiplier));
    if constexpr (kElements == 8) {
      // Bytes of even and of odd elements, put together and masked four at a time; the signs are the top bits of the
      // 16-bit halves.
      const uint32_t even = lowBytes(magnitudes[0], magnitudes[2], magnitudes[4], magnitudes[6]);
      const uint32_t odd = lowBytes(magnitudes[1], magnitudes[3], magnitudes[5], magnitudes[7]);
      const uint32_t low = __byte_perm(n.words[0], n.words[1], 0x7351);  // bytes 1, 1, 3, 3 of two words
      const uint32_t high = __byte_perm(n.words[2], n.words[3], 0x7351);
      const uint32_t evenSigns = __byte_perm(low, high, 0x5410);
      const uint32_t oddSigns = __byte_perm(low, high, 0x7632);
      return (even & 0x07070707u) | (evenSigns >> 4 & 0x08080808u) | (odd << 4 & 0x70707070u) |
             (oddSigns & 0x80808080u);
    }
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < kElements; i++) {
      codes |= ((magnitudes[i] & 7u) | (__float_as_uint(f.v[i]) >> 28 & 8u)) << (4 * i);
    }
    return codes;
  }
  static FCCL_TEAM_FN uint32_t lowBytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
  }

  FCCL_TEAM_FN void storeCodes(Pack p, uint32_t codes) const {
    uint8_t* out = out_ + static_cast<uint32_t>(p.index) * (kElements / 2);
    if (p.elements == 0) return;  // rows are multiples of a block, so packs are whole
    if constexpr (kElements == 8) {
      if (reinterpret_cast<uintptr_t>(out) % 4 == 0) [[likely]] {
        *reinterpret_cast<uint32_t*>(out) = codes;
        return;
      }
    }
#pragma unroll
    for (int i = 0; i < kElements / 2; i++) out[i] = static_cast<uint8_t>(codes >> (8 * i));
  }

  // scaleOffset() of block k is that of block 0, k / 4 tiles further, and k % 4.
  FCCL_TEAM_FN void placeScales(uint32_t m) {
    const uint32_t blocks = static_cast<uint32_t>(a_.cols) / kNvfp4Block;
    const uint32_t tiles = (blocks + 3) / 4;
    uint64_t row = static_cast<uint64_t>(m) * blocks;
    tileBytes_ = 4;
    if (a_.scaleLayout == fcclScaleSwizzled128x4) {
      row = static_cast<uint64_t>(m / 128) * (tiles * 512) + m % 32 * 16 + m % 128 / 32 * 4;
      tileBytes_ = 512;
    } else if (a_.scaleLayout == fcclScaleSwizzled8x4) {
      row = static_cast<uint64_t>(m / 8) * (tiles * 32) + m % 8 * 4;
      tileBytes_ = 32;
    }
    scales_ = a_.scaleOut + row;
    wordScales_ = blocks % 4 == 0 && reinterpret_cast<uintptr_t>(scales_) % 4 == 0;
  }
  // The lanes of four blocks put their bytes together.
  FCCL_TEAM_FN void storeScales(Pack p, uint32_t byte) const {
    constexpr auto lanes = static_cast<uint32_t>(kLanes);
    const uint32_t block = static_cast<uint32_t>(p.index) / lanes;
    uint8_t* tile = scales_ + block / 4 * tileBytes_;
    if (wordScales_) [[likely]] {
      uint32_t word = byte << (8 * (block % 4));
      word |= __shfl_xor_sync(0xffffffffu, word, lanes);
      word |= __shfl_xor_sync(0xffffffffu, word, 2 * lanes);
      if (p.elements != 0 && static_cast<uint32_t>(p.index) % (4 * lanes) == 0)
        *reinterpret_cast<uint32_t*>(tile) = word;
      return;
    }
    if (p.elements != 0 && static_cast<uint32_t>(p.index) % lanes == 0) tile[block % 4] = static_cast<uint8_t>(byte);
  }

  const RowArgs& a_;
  uint8_t* out_;               // of the row
  uint8_t* scales_ = nullptr;  // of the row's first block
  uint32_t tileBytes_ = 0;
  bool wordScales_ = false;
  float scale_;  // FP8: 1 / dequantization scale; NVFP4: the global scale
  Wire wire_;
};

}  // namespace fccl::cuda
