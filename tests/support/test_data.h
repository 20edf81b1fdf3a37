// Test data. A value depends on the rank and on the index, has no symmetry and is not linear in the index, so that
// swapped shards, shifted rows and a rank counted twice are all seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "fccl.h"

namespace fccl::test {

// A good 64-bit hash of two numbers.
uint64_t hash(uint64_t seed, uint64_t index);
// Uniform in [-1, 1).
double uniform(uint64_t seed, uint64_t index);

size_t dtypeBytes(fcclDataType_t dtype);
const char* dtypeName(fcclDataType_t dtype);
const char* opName(fcclRedOp_t op);
const char* patternName(fcclFusionPattern_t pattern);
const char* strategyName(fcclStrategy_t strategy);

// Element `index` of a buffer as float64 (exact for the float types), and the other way, rounded to nearest even.
double load(fcclDataType_t dtype, const void* buffer, size_t index);
void store(fcclDataType_t dtype, void* buffer, size_t index, double value);

// What floating-point data looks like.
enum class DataKind {
  kPlain,         // magnitudes over four powers of two, both signs
  kCancellation,  // 1e8, 1, -1e8 and the like, in an order that depends on rank and index
  kSpecial,       // plain, with rows (or runs) of NaN, Inf, -0, subnormals, and rows that sum to zero
};

// The value of element `index` of `rank`'s input; `row` and `column` only matter for kSpecial.
double inputValue(DataKind kind, fcclDataType_t dtype, uint64_t seed, int rank, int ranks, uint64_t row,
                  uint64_t column);

// Fills a plain buffer of `count` elements of any type: integers over their whole range, floats as kPlain.
void fillPlain(fcclDataType_t dtype, void* buffer, size_t count, uint64_t seed, int rank);

// Hexadecimal of a few bytes, for messages.
std::string hexBytes(const void* bytes, size_t count);

}  // namespace fccl::test
