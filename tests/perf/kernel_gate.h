// Holds streams back until the host lets all of them go at once.
#pragma once

#include <cuda_runtime_api.h>

namespace fccl::perf {

// Work behind this in the stream begins when *opened (mapped host memory, device address) has reached `number`.
cudaError_t gate(const int* opened, int number, cudaStream_t stream);

}  // namespace fccl::perf
