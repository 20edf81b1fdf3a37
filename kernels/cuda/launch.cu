#include "kernels/cuda/kernels.cuh"

namespace fccl::cuda {
namespace {

__global__ void armKernel(uint4* words, uint64_t count) {
  for (uint64_t i = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<uint64_t>(gridDim.x) * blockDim.x) {
    words[i] = make_uint4(kSentinel, kSentinel, kSentinel, kSentinel);
  }
}

}  // namespace

cudaError_t arm(char* memory, uint64_t bytes, cudaStream_t stream) {
  armKernel<<<256, 256, 0, stream>>>(reinterpret_cast<uint4*>(memory), bytes / 16);
  return cudaGetLastError();
}

cudaError_t load() {
  for (const auto loadOne : {loadBf16, loadFp16, loadFp32}) {
    if (const cudaError_t error = loadOne(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t launch(Protocol protocol, fcclDataType_t dtype, const CudaWorld& world, const RowArgs& rows,
                   const LaunchShape& shape, cudaStream_t stream) {
  if (shape.threads % 32 != 0 || shape.threads <= 0 || shape.threads > 1024 || shape.blocks <= 0)
    return cudaErrorInvalidValue;
  switch (dtype) {
    case fcclBfloat16: return launchBf16(protocol, world, rows, shape, stream);
    case fcclFloat16: return launchFp16(protocol, world, rows, shape, stream);
    case fcclFloat32: return launchFp32(protocol, world, rows, shape, stream);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace fccl::cuda
