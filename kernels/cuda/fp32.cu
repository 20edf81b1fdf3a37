#include "kernels/cuda/kernels.cuh"

namespace fccl::cuda {

cudaError_t launchFp32(Protocol protocol, const CudaWorld& world, const RowArgs& rows, const LaunchShape& shape,
                       cudaStream_t stream) {
  return launchType<Fp32>(protocol, world, rows, shape, stream);
}

cudaError_t loadFp32() { return loadType<Fp32>(); }

}  // namespace fccl::cuda
