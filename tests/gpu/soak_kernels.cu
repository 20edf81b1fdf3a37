#include <cuda_bf16.h>

#include "tests/gpu/soak_kernels.cuh"
#include "tests/gpu/soak_kernels.h"

namespace fccl::test {
namespace {

__global__ void fillKernel(__nv_bfloat16* input, int64_t count, int rank, const uint32_t* call) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    input[i] = __int2bfloat16_rn(soakValue(i, rank, *call));
  }
}

__global__ void checkKernel(const __nv_bfloat16* sum, int64_t count, int ranks, int added, const uint32_t* call,
                            uint32_t* wrong) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    int wanted = added;
    for (int r = 0; r < ranks; r++) wanted += soakValue(i, r, *call);
    if (__bfloat162float(sum[i]) != static_cast<float>(wanted)) atomicAdd(wrong, 1u);
  }
}

__global__ void nextKernel(uint32_t* call) { ++*call; }

}  // namespace

cudaError_t fillInput(void* input, int64_t count, int rank, const uint32_t* call, cudaStream_t stream) {
  fillKernel<<<4, 256, 0, stream>>>(static_cast<__nv_bfloat16*>(input), count, rank, call);
  return cudaGetLastError();
}

cudaError_t checkSum(const void* sum, int64_t count, int ranks, int added, const uint32_t* call, uint32_t* wrong,
                     cudaStream_t stream) {
  checkKernel<<<4, 256, 0, stream>>>(static_cast<const __nv_bfloat16*>(sum), count, ranks, added, call, wrong);
  return cudaGetLastError();
}

cudaError_t nextCall(uint32_t* call, cudaStream_t stream) {
  nextKernel<<<1, 1, 0, stream>>>(call);
  return cudaGetLastError();
}

cudaError_t loadSoakKernels() {
  cudaFuncAttributes attributes;
  for (const void* kernel : {reinterpret_cast<const void*>(&fillKernel), reinterpret_cast<const void*>(&checkKernel),
                             reinterpret_cast<const void*>(&nextKernel)}) {
    if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace fccl::test
