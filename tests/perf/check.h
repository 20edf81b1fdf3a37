// Every element of a call's outputs against a float64 reference.
#pragma once

#include <cstdint>

#include "tests/perf/variants.h"

namespace fccl::perf {

// How many elements of the outputs of `variant` are not what call number `call` of `c` must give on `ranks` ranks; the
// residual is the one of fillResidual. The first wrong element is described on stderr.
long long countWrong(const Case& c, int ranks, uint64_t call, const Variant& variant);

// What countWrong compares quantized bytes with: found by search among all codes, nearest, ties to even, saturating.
uint8_t referenceE4m3(double value);
uint8_t referenceE2m1(double value);
double valueOfE4m3(uint8_t code);
double valueOfE2m1(uint8_t code);

}  // namespace fccl::perf
