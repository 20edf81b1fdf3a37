// Reference conversions of the number formats, written from their definitions in float64. No code shared with the
// library.
#pragma once

#include <cstdint>

namespace fccl::test {

// Sign, exponent and fraction bits; the exponent's bias is 2^(exponentBits - 1) - 1. What the all-ones exponent means
// differs: `kIeee` Inf and NaN; `kOnlyNan` (e4m3) numbers, but for one NaN code per sign; `kNumbers` (e2m1) only
// numbers.
struct NumberFormat {
  enum class Top { kIeee, kOnlyNan, kNumbers };

  int exponentBits;
  int fractionBits;
  Top top;

  int bias() const { return (1 << (exponentBits - 1)) - 1; }
  uint32_t signBit() const { return 1u << (exponentBits + fractionBits); }
  uint32_t codes() const { return 2u * signBit(); }
  // Code of the largest finite value, without sign.
  uint32_t largest() const;

  // The value of a code. NaN for NaN codes, with the code's sign.
  double decode(uint32_t code) const;

  // Round to nearest, ties to even. Formats with Inf overflow to it, the others saturate to the largest value, for Inf
  // too. NaN keeps its sign: the quiet NaN code, or, where the format has none (e2m1), the code of the largest value.
  uint32_t encode(double value) const;
};

inline constexpr NumberFormat kBfloat16{8, 7, NumberFormat::Top::kIeee};
inline constexpr NumberFormat kFloat16{5, 10, NumberFormat::Top::kIeee};
inline constexpr NumberFormat kE4m3{4, 3, NumberFormat::Top::kOnlyNan};
inline constexpr NumberFormat kE2m1{2, 1, NumberFormat::Top::kNumbers};

}  // namespace fccl::test
