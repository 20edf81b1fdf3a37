// The product of a row-parallel layer, whose partial sums the ranks add up afterwards.
#ifndef EXAMPLES_GEMM_EPILOGUE_GEMM_H_
#define EXAMPLES_GEMM_EPILOGUE_GEMM_H_

#include <cuda_runtime_api.h>

#include "fccl_device.h"

// partial = activations * weights, in bf16 with fp32 accumulation.
struct Gemm {
  const void* activations;  // [tokens, k]
  const void* weights;      // [k, hidden]
  void* partial;            // [tokens, hidden]
  int tokens;
  int k;       // of this rank; a multiple of 64
  int hidden;  // a multiple of 64
};

// Loads the kernels on the current GPU: not when a peer's kernel already waits for them.
cudaError_t loadGemm();

cudaError_t multiply(const Gemm& gemm, cudaStream_t stream);
// The same, and each tile goes to the peers as soon as it is there.
cudaError_t multiplyAndPush(const Gemm& gemm, const fcclDevicePush_t& push, cudaStream_t stream);

#endif  // EXAMPLES_GEMM_EPILOGUE_GEMM_H_
