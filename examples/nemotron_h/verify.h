// Checks what one call has left on this rank against float64 and a quantizer of its own.
#ifndef EXAMPLES_NEMOTRON_H_VERIFY_H_
#define EXAMPLES_NEMOTRON_H_VERIFY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/bf16.h"

// What a call has read and written. `norm` is what was quantized, also where the pattern does not write it.
struct CallResult {
  int64_t tokens, hidden;
  const std::vector<uint32_t>* partialKeys;  // streams of all ranks' partial sums, in rank order
  const Bf16* residual;
  const Bf16* weight;
  const Bf16* residualOut;
  const Bf16* norm;
  const uint8_t* quant;   // null without quantization
  const uint8_t* scales;  // SWIZZLED_128x4
  size_t scaleBytes;
};

// The first value that is wrong, as a sentence, or nothing.
//   sum       bf16 rounding of the fp32 sum in rank order, and that within its rounding of the float64 sum
//   residual  exact
//   norm      within half a bf16 ulp, plus 2^-16 for fp32 arithmetic, of the float64 norm of the residual received
//   quant     codes, scales and zero padding exactly what the reference quantizer gives for the norm received
std::optional<std::string> findMismatch(const CallResult& result);

#endif  // EXAMPLES_NEMOTRON_H_VERIFY_H_
