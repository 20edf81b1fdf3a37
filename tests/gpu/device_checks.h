// Data made and checked on the GPU, in the order of a stream, so that checking does not order the calls of different
// ranks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "fccl.h"

namespace fccl::test {

// bf16 elements that depend on the element, the rank and *call: small integers, so that sums are exact.
cudaError_t fillInput(void* input, int64_t count, int rank, const uint32_t* call, cudaStream_t stream);
// *wrong counts the elements of `sum` that are not the sum of all ranks' inputs of *call from element `first` on, plus
// `added`.
cudaError_t checkSum(const void* sum, int64_t first, int64_t count, int ranks, int added, const uint32_t* call,
                     uint32_t* wrong, cudaStream_t stream);
cudaError_t nextCall(uint32_t* call, cudaStream_t stream);
// fillInput and checkSum at the edges of programmatic dependent launches: the first lets the next kernel begin before
// it writes, the second begins early and waits for the kernel before. It also counts NaN among the elements of `norm`,
// and fills it with NaN again.
cudaError_t fillInputLate(void* input, int64_t count, int rank, const uint32_t* call, cudaStream_t stream);
cudaError_t checkSumEarly(const void* sum, void* norm, int64_t count, int ranks, const uint32_t* call, uint32_t* wrong,
                          cudaStream_t stream);

// Holds all multiprocessors of the current GPU but `left` for so long.
cudaError_t occupy(int left, int milliseconds, cudaStream_t stream);
// One block that takes a quarter of a multiprocessor, for a millisecond.
cudaError_t takeQuarter(cudaStream_t stream);

// The outputs of a fused call and what they must be, bit by bit; what the call does not have is null.
struct ExpectedOutputs {
  // Room behind every output for a canary.
  static constexpr int64_t kCanaryBytes = 256;

  struct Elements {
    char* actual;
    const char* expected;
    int64_t bytes;  // a multiple of 16
  };
  struct Scales {
    uint8_t* actual;
    const uint8_t* expected;  // [tokens, blocks]; a padding of zeros goes without saying
    int64_t tokens;
    int64_t blocks;
    fcclScaleLayout_t layout;
    int64_t bytes;  // of `actual`
  };
  static constexpr int kElements = 4;
  Elements elements[kElements];  // reduced, residual, norm, quantized
  Scales scales;
};
// Every output full of poison, the canary behind it whole.
cudaError_t prepareOutputs(const ExpectedOutputs& outputs, cudaStream_t stream);
// *wrong counts the pieces of 16 bytes, scales and bytes of canaries that are not as they must be.
cudaError_t checkOutputs(const ExpectedOutputs& outputs, uint32_t* wrong, cudaStream_t stream);

// Loaded before ranks wait for each other.
cudaError_t loadDeviceChecks();

}  // namespace fccl::test
