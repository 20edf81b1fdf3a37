#include "kernels/cuda/kernels.cuh"

namespace fccl::cuda {

cudaError_t launchFp16(Protocol protocol, const CudaWorld& world, const RowArgs& rows, const LaunchShape& shape,
                       cudaStream_t stream) {
  return launchType<Fp16>(protocol, world, rows, shape, stream);
}

cudaError_t loadFp16() { return loadType<Fp16>(); }

}  // namespace fccl::cuda
