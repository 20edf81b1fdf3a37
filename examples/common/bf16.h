// bfloat16 as a storage type: reads as float, writes by rounding to nearest even.
#ifndef EXAMPLES_COMMON_BF16_H_
#define EXAMPLES_COMMON_BF16_H_

#include <bit>
#include <cstdint>

class Bf16 {
 public:
  Bf16() = default;

  // Integer arithmetic only, so that loops over rows of Bf16 vectorise.
  explicit Bf16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const bool isNan = (bits & 0x7fffffffu) > 0x7f800000u;
    // Rounding could carry a NaN's mantissa over into infinity, so a NaN is cut off and kept quiet instead.
    const uint32_t rounded = isNan ? bits | 0x00400000u : bits + 0x7fffu + ((bits >> 16) & 1u);
    bits_ = static_cast<uint16_t>(rounded >> 16);
  }

  static Bf16 fromBits(uint16_t bits) {
    Bf16 value;
    value.bits_ = bits;
    return value;
  }

  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits_) << 16); }
  uint16_t bits() const { return bits_; }

 private:
  uint16_t bits_ = 0;
};

static_assert(sizeof(Bf16) == 2);

#endif  // EXAMPLES_COMMON_BF16_H_
