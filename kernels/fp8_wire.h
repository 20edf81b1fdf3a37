// How numbers travel in LOWPRECISION: e4m3 codes, and for each block of 128 of them an fp32 scale, a power of two.
//
//   scale   the smallest power of two, from 2^-126 to 2^119, with amax / scale <= 448, amax the block's largest finite
//           magnitude: it lies between 224 and 448 then
//   code    e4m3(value / scale), nearest even; what is not finite: NaN
//   value   code * scale, exact in fp32
//
// Multiplying by a power of two is exact, so values that e4m3 holds arrive as they are, with any common power of two
// on them. A value is rounded to four significant bits, by at most 1/16 of it, down to 2^-13 of its block's amax; from
// there on by at most 2^-17 of amax. Below 2^-136 everything is zero, and above 1.75 * 2^127 the wire saturates.
// Infinities arrive as NaN, and leave the other values of their block alone.
//
// A row in a slot: the codes, from the next multiple of 64 bytes on the scales, up to one again.
#pragma once

#include <cstdint>

#include "kernels/formats.h"

namespace fccl {

constexpr int kFp8Block = 128;

FCCL_BOTH_FN constexpr int64_t fp8RoundUp(int64_t bytes) { return (bytes + 63) / 64 * 64; }
// Bytes of `cols` columns of a row in a slot; where its scales begin.
FCCL_BOTH_FN constexpr int64_t fp8RowBytes(int64_t cols) {
  return fp8RoundUp(cols) + fp8RoundUp((cols + kFp8Block - 1) / kFp8Block * 4);
}
FCCL_BOTH_FN constexpr int64_t fp8ScalesAt(int64_t cols) { return fp8RoundUp(cols); }

constexpr uint32_t kFp8Infinity = 0x7f800000u;  // bits of an fp32 from which on it is not finite

// Of a block's largest finite magnitude; both as the bits of an fp32.
FCCL_BOTH_FN uint32_t fp8ScaleBits(uint32_t amaxBits) {
  // amax = m * 2^k: 2^(k - 8), and one more where m exceeds 1.75 = 448 / 256.
  const uint32_t exponent = (amaxBits + 0x1fffffu) >> 23;
  return (exponent < 9 ? 1u : exponent > 254 ? 246u : exponent - 8) << 23;
}
// What values are multiplied with before e4m3: 1 / scale.
FCCL_BOTH_FN float fp8Inverse(uint32_t scaleBits) { return floatOf(0x7f000000u - scaleBits); }

}  // namespace fccl
