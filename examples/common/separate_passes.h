// What follows an all-reduce in a transformer layer, as separate passes over the rows: the way without fusion. The
// examples measure the fused call against these loops, so they are written to vectorise: no call, no branch.
#ifndef EXAMPLES_COMMON_SEPARATE_PASSES_H_
#define EXAMPLES_COMMON_SEPARATE_PASSES_H_

#include <cmath>
#include <cstdint>

// Inlined by force, so that a caller compiled for a wider instruction set carries the loop with it.
#define EXAMPLES_INLINE [[gnu::always_inline]] inline

// For a loop whose output may be one of its inputs, element by element, which __restrict would rule out.
#if defined(__clang__)
#define EXAMPLES_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define EXAMPLES_INDEPENDENT _Pragma("GCC ivdep")
#endif

template <class T>
EXAMPLES_INLINE void addResidual(const T* reduced, const T* residual, T* residualOut, int64_t count) {
  EXAMPLES_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    residualOut[i] = T(static_cast<float>(reduced[i]) + static_cast<float>(residual[i]));
  }
}

template <class T>
EXAMPLES_INLINE void rmsNorm(const T* __restrict input, const T* __restrict weight, float eps, T* __restrict output,
                             int64_t tokens, int64_t hidden) {
  for (int64_t token = 0; token < tokens; ++token) {
    const T* __restrict row = input + token * hidden;
    T* __restrict out = output + token * hidden;
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < hidden; ++i) squares += static_cast<float>(row[i]) * static_cast<float>(row[i]);
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(hidden) + eps);
    for (int64_t i = 0; i < hidden; ++i) {
      out[i] = T(static_cast<float>(row[i]) * scale * static_cast<float>(weight[i]));
    }
  }
}

#endif  // EXAMPLES_COMMON_SEPARATE_PASSES_H_
