#include "tests/support/number_formats.h"

#include <cmath>
#include <limits>

namespace fccl::test {

uint32_t NumberFormat::largest() const {
  const uint32_t allOnes = signBit() - 1;
  switch (top) {
    case Top::kIeee: return (((1u << exponentBits) - 1u) << fractionBits) - 1u;
    case Top::kOnlyNan: return allOnes - 1u;
    case Top::kNumbers: return allOnes;
  }
  return 0;
}

double NumberFormat::decode(uint32_t code) const {
  const uint32_t magnitude = code & (signBit() - 1u);
  const double sign = (code & signBit()) != 0 ? -1.0 : 1.0;
  if (magnitude > largest()) {
    const bool infinite = top == Top::kIeee && magnitude == largest() + 1u;
    const double special =
        infinite ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
    return std::copysign(special, sign);
  }
  const int exponent = static_cast<int>(magnitude >> fractionBits);
  const int fraction = static_cast<int>(magnitude & ((1u << fractionBits) - 1u));
  const int leading = exponent == 0 ? 0 : 1 << fractionBits;
  const int power = (exponent == 0 ? 1 : exponent) - bias() - fractionBits;
  return sign * std::ldexp(leading + fraction, power);
}

uint32_t NumberFormat::encode(double value) const {
  const uint32_t sign = std::signbit(value) ? signBit() : 0u;
  if (std::isnan(value)) {
    const uint32_t quiet = (((1u << exponentBits) - 1u) << fractionBits) | (1u << (fractionBits - 1));
    return sign | (top == Top::kIeee ? quiet : signBit() - 1u);
  }
  const uint32_t beyond = top == Top::kIeee ? largest() + 1u : largest();
  const double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return sign | beyond;

  const int lowest = 1 - bias();
  int exponent = magnitude == 0.0 ? lowest : std::ilogb(magnitude);
  if (exponent < lowest) exponent = lowest;
  // Float64's default rounding mode is to nearest even, and scaling by a power of two is exact.
  const double steps = std::nearbyint(std::ldexp(magnitude, fractionBits - exponent));
  // `steps` counts in units of the last place: below 2^fractionBits the value is subnormal, and rounding up to
  // 2^(fractionBits + 1) carries into the exponent, which is what adding to the code does by itself.
  const double code = std::ldexp(exponent - lowest, fractionBits) + steps;
  return sign | (code > largest() ? beyond : static_cast<uint32_t>(code));
}

}  // namespace fccl::test
