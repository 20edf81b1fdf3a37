// Every tolerance of the tests, with where it comes from. u = 2^-24 is the rounding unit of fp32.
#pragma once

#include <cmath>
#include <cstdint>

namespace fccl::test {

// Sums (s), residuals (r) and everything that quantization makes of the rounded n have no tolerance: SEMANTICS fixes
// each of their operations and roundings.

// Relative error, before the last rounding, that the norm n = r * k * (bias + weight) of a row of `hidden` elements may
// have against float64. k = 1/sqrt(q/hidden + eps):
//   - each fp32 operation outside of q (division, addition of eps, square root, reciprocal, two products) is good to
//   u/2
//     relative, in k's case halved by the square root again: together below 4u; 6u leaves room for a reciprocal square
//     root that is refined rather than exact;
//   - q is a sum of `hidden` squares without cancellation: each square and each addition has a relative error of at
//   most
//     u, of either sign. They add up like a random walk, to about sqrt(hidden) u for the most naive order, and the
//     square root halves that.
// An order that is worse than this (or a sum in bf16) fails.
inline double normTolerance(int64_t hidden) { return (6.0 + 0.5 * std::sqrt(static_cast<double>(hidden))) * 0x1p-24; }

// Products that end below fp32's smallest normal number lose relative precision: half a step of the subnormals for
// each of two products, the first of which is then multiplied by a factor of at most about 4.
inline constexpr double kNormAbsoluteTolerance = 4 * 0x1p-149;

// Share of quantized codes that may differ between the quantizer applied to the library's rounded n and to the float64
// norm: one where the norm itself was rounded to another neighbour and that neighbour is across a border of the codes.
inline constexpr double kQuantCodesOff = 0.005;

// LOWPRECISION, sum of unit normal data over any number of ranks: error against the exact sum, relative in L2.
//   - e4m3 with a power of two as its block's scale rounds x of the binade from 2^k to a multiple of 2^(k-3): an error
//     evenly spread over half a step to either side, variance 2^(2k-6) / 12. For normal data, of whatever deviation,
//     E[2^(2k)] / E[x^2] lies between 0.538 and 0.544, so one rounding costs sqrt(0.544 / 12) / 8 = 2.66 %;
//   - inputs are rounded but those that their rank owns, (R - 1) / R of the variance; their errors add up as the inputs
//     do. Then the sum is rounded: 2.66 % * sqrt(1 + (R - 1) / R), 3.26 % for two ranks, 3.64 % for eight, below 3.77 %
//     for any number. What e4m3 loses below 2^-6 of its range is 2^-17 of a block's largest value, nothing beside that,
//     and four significant bits are none too many for any data type. The rest of 4 % is room for the draw.
inline constexpr double kLowPrecisionL2 = 4e-2;
// One rounding alone costs 2.65 %: whoever is below this has sent no FP8.
inline constexpr double kLowPrecisionLeastL2 = 2e-2;

}  // namespace fccl::test
