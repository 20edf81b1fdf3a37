// Data of the soak tests, made and checked on the GPU, so that checking does not order the calls of different ranks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fccl::test {

// bf16 elements that depend on the element, the rank and *call: small integers, so that sums are exact.
cudaError_t fillInput(void* input, int64_t count, int rank, const uint32_t* call, cudaStream_t stream);
// *wrong counts the elements of `sum` that are not the sum of all ranks' inputs of *call, plus `added`.
cudaError_t checkSum(const void* sum, int64_t count, int ranks, int added, const uint32_t* call, uint32_t* wrong,
                     cudaStream_t stream);
cudaError_t nextCall(uint32_t* call, cudaStream_t stream);
// Loaded before ranks wait for each other.
cudaError_t loadSoakKernels();

}  // namespace fccl::test
