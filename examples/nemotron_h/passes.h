// The loops of this example that are worth compiling for the machine at hand.
#ifndef EXAMPLES_NEMOTRON_H_PASSES_H_
#define EXAMPLES_NEMOTRON_H_PASSES_H_

#include <cstddef>
#include <cstdint>

#include "common/bf16.h"

void fillNormal(Bf16* out, int64_t count, uint32_t key);
// Elements first to first + count of a stream of partial sums.
void fillPartialSums(Bf16* out, int64_t first, int64_t count, uint32_t key, int ranks);
void fillNormWeights(Bf16* out, int64_t count, uint32_t key);

// The passes that follow an all-reduce without fusion. Each streams through memory once.
void addPass(const Bf16* reduced, const Bf16* residual, Bf16* residualOut, int64_t count);
void normPass(const Bf16* input, const Bf16* weight, float eps, Bf16* output, int64_t tokens, int64_t hidden);
// NVFP4 with scales in the SWIZZLED_128x4 layout; writes its padding too, as the fused call does.
void quantPass(const Bf16* norm, float globalScale, uint8_t* quantOut, uint8_t* scaleOut, size_t scaleBytes,
               int64_t tokens, int64_t hidden);

#endif  // EXAMPLES_NEMOTRON_H_PASSES_H_
