// What fcclAllReduce and fcclAllReduceFused must compute, written from SEMANTICS Part I, slowly and in the open.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fccl.h"

namespace fccl::test {

using Bytes = std::vector<uint8_t>;

// The result of fcclAllReduce. `inputs[r]` are rank r's `count` elements.
Bytes referenceAllReduce(fcclDataType_t dtype, fcclRedOp_t op, const std::vector<const void*>& inputs, size_t count);

// Empty where `actual` equals `expected`; else the first element that differs, in words. A NaN equals any NaN. With
// `zeroSigns` false +0 equals -0.
std::string compareElements(fcclDataType_t dtype, const void* expected, const void* actual, size_t count,
                            bool zeroSigns);
// The same for all-reduce results: the sign of a zero only counts where the contract fixes it, in sums of fp16, bf16,
// fp32.
std::string compareAllReduce(fcclDataType_t dtype, fcclRedOp_t op, const void* expected, const void* actual,
                             size_t count);

// Steps 1 and 2 of the fused epilogue, exact.
Bytes referenceResidual(fcclDataType_t dtype, const void* reduced, const void* residual, size_t count);

// Step 4 of one row before its last rounding, in float64. `weight` of `weightDtype`.
std::vector<double> referenceNorm(fcclDataType_t dtype, const void* row, const void* weight, fcclDataType_t weightDtype,
                                  int64_t hidden, float weightBias, float eps);

// Empty where every element of `actual` is the rounding of a value within the tolerance around `expected`.
std::string compareNorm(fcclDataType_t dtype, const std::vector<double>& expected, const void* actual);

// Step 5: e4m3 of `count` rounded n.
Bytes referenceFp8(fcclDataType_t dtype, const void* norm, size_t count, float dequantScale);

// Step 5, NVFP4: codes packed two to a byte, and the scales in their layout with zeroed padding.
struct Nvfp4 {
  Bytes codes;
  Bytes scales;
  // Elements whose product with the multiplier is NaN although n is a number (global scale Inf): code not defined.
  std::vector<bool> undefinedCode;
};
Nvfp4 referenceNvfp4(fcclDataType_t dtype, const void* norm, int64_t tokens, int64_t hidden, float globalScale,
                     fcclScaleLayout_t layout);

// Bytes of a scale buffer and position of a scale in it, by the formulas of SEMANTICS 2.3.
size_t scaleBytes(int64_t tokens, int64_t hidden, fcclScaleLayout_t layout);
size_t scaleOffset(int64_t row, int64_t block, int64_t hidden, fcclScaleLayout_t layout);

}  // namespace fccl::test
