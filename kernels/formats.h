// Number formats in plain arithmetic, for both devices: the exact rules that every fast path must reproduce byte for
// byte.
#pragma once

#include <cstdint>
#include <cstring>

#include "fccl.h"
#include "kernels/team_macros.h"

namespace fccl {

FCCL_BOTH_FN uint32_t bitsOf(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}
FCCL_BOTH_FN float floatOf(uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}

FCCL_BOTH_FN float widenBf16(uint16_t h) { return floatOf(static_cast<uint32_t>(h) << 16); }

// Round to nearest even; NaN stays NaN (quiet, its sign and upper payload kept).
FCCL_BOTH_FN uint16_t narrowBf16(float f) {
  const uint32_t u = bitsOf(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

FCCL_BOTH_FN float widenFp16(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) {
    const uint32_t quiet = magnitude > 0x7c00u ? 0x400000u : 0u;
    return floatOf(sign | 0x7f800000u | quiet | ((magnitude & 0x3ffu) << 13));
  }
  // 2^112 moves the exponent bias from 15 to 127 and makes subnormals normal; the product is exact.
  return floatOf(sign | bitsOf(floatOf(magnitude << 13) * 0x1p112f));
}

FCCL_BOTH_FN uint16_t narrowFp16(float f) {
  const uint32_t u = bitsOf(f);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
  if (a >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and more round to infinity
  if (a < 0x38800000u) {  // below 2^-14: adding 0.5 leaves the subnormal, rounded, in the low mantissa bits
    return static_cast<uint16_t>(sign | (bitsOf(floatOf(a) + 0.5f) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
}

// e4m3 (no infinity): nearest even, saturating to +-448, NaN to 0x7f with its sign.
FCCL_BOTH_FN uint8_t e4m3FromFloat(float f) {
  const uint32_t u = bitsOf(f);
  const uint32_t sign = (u >> 24) & 0x80u;
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);
  uint32_t code;
  if (a < 0x3c800000u) {  // below 2^-6: a multiple of 2^-9, rounded by adding 2^14
    code = bitsOf(floatOf(a) + 16384.0f) - 0x46800000u;
  } else {
    code = ((a + 0x7ffffu + ((a >> 20) & 1u)) >> 20) - (120u << 3);
    if (code > 0x7eu) code = 0x7eu;
  }
  return static_cast<uint8_t>(sign | code);
}

FCCL_BOTH_FN float floatFromE4m3(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7fu;
  if (magnitude == 0x7fu) return floatOf(sign | 0x7fc00000u);
  return floatOf(sign | bitsOf(floatOf(magnitude << 20) * 0x1p120f));
}

// e2m1 magnitudes 0 0.5 1 1.5 2 3 4 6: nearest, ties to the even code, saturating; NaN to +-6.
FCCL_BOTH_FN uint8_t e2m1FromFloat(float f) {
  const float a = floatOf(bitsOf(f) & 0x7fffffffu);
  const uint32_t sign = (bitsOf(f) >> 28) & 8u;
  if (a != a) return static_cast<uint8_t>(sign | 7u);
  const uint32_t code = static_cast<uint32_t>(a > 0.25f) + static_cast<uint32_t>(a >= 0.75f) +
                        static_cast<uint32_t>(a > 1.25f) + static_cast<uint32_t>(a >= 1.75f) +
                        static_cast<uint32_t>(a > 2.5f) + static_cast<uint32_t>(a >= 3.5f) +
                        static_cast<uint32_t>(a > 5.0f);
  return static_cast<uint8_t>(sign | code);
}

// Scale byte of an NVFP4 block: e4m3(global * amax / 6), saturating, never with a sign and never NaN: what is not
// positive (also from a bad global scale) is 0. amax leaves NaN out. Both operations correctly rounded.
FCCL_BOTH_FN uint8_t nvfp4ScaleByte(float global, float amax) {
#if defined(__CUDA_ARCH__)
  const float wanted = __fdiv_rn(__fmul_rn(global, amax), 6.0f);
#else
  const float wanted = global * amax / 6.0f;
#endif
  return wanted > 0.0f ? e4m3FromFloat(wanted) : static_cast<uint8_t>(0);
}

// What elements are multiplied with before e2m1: global / scale; 0, and so all codes 0, where the scale is 0.
FCCL_BOTH_FN float nvfp4Multiplier(float global, uint8_t scaleByte) {
#if defined(__CUDA_ARCH__)
  return scaleByte == 0 ? 0.0f : __fdiv_rn(global, floatFromE4m3(scaleByte));
#else
  return scaleByte == 0 ? 0.0f : global / floatFromE4m3(scaleByte);
#endif
}

// Byte of the scale of block k of row m (fccl.h, fcclScaleLayout_t), with K blocks per row.
FCCL_BOTH_FN int64_t scaleOffset(int layout, int64_t m, int64_t k, int64_t K) {
  const int64_t KT = (K + 3) / 4;
  if (layout == fcclScaleSwizzled128x4) {
    return m / 128 * KT * 512 + k / 4 * 512 + m % 32 * 16 + m % 128 / 32 * 4 + k % 4;
  }
  if (layout == fcclScaleSwizzled8x4) return m / 8 * KT * 32 + k / 4 * 32 + m % 8 * 4 + k % 4;
  return m * K + k;
}

// Rows that a scale buffer for `rows` rows is padded to; columns are padded to multiples of 4 in the swizzled layouts.
FCCL_BOTH_FN int64_t scaleRows(int layout, int64_t rows) {
  const int64_t tile = layout == fcclScaleSwizzled128x4 ? 128 : layout == fcclScaleSwizzled8x4 ? 8 : 1;
  return (rows + tile - 1) / tile * tile;
}

}  // namespace fccl
