#include "kernels/cuda/kernels.cuh"

namespace fccl::cuda {

cudaError_t launchBf16(Protocol protocol, const CudaWorld& world, const RowArgs& rows, const LaunchShape& shape,
                       cudaStream_t stream) {
  return launchType<Bf16>(protocol, world, rows, shape, stream);
}

cudaError_t loadBf16() { return loadType<Bf16>(); }

}  // namespace fccl::cuda
