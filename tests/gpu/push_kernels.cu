#include "kernels/cuda/packs.cuh"
#include "tests/gpu/device_checks.cuh"
#include "tests/gpu/push_kernels.h"

namespace fccl::test {
namespace {

static_assert(FCCL_PUSH_SENTINEL == cuda::kSentinel);

// All packs of the call, `make(pack)` giving their 16 bytes. Nothing is written before the kernel before has ended,
// which may still read `input`.
template <class Make>
__device__ void produce(uint4* input, const fcclDevicePush_t& push, Make&& make) {
  const fcclPushEpoch_t epoch = fcclPushBegin(push);
  const int perPack = 16 / static_cast<int>(push.elementBytes);
  const int packsPerRow = static_cast<int>(push.hidden) / perPack;
  const int packs = static_cast<int>(push.tokens) * packsPerRow;
  for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < packs;
       i += static_cast<int>(gridDim.x * blockDim.x)) {
    const uint4 pack = make(i);
    input[i] = pack;
    fcclPushPack(push, epoch, i / packsPerRow, i % packsPerRow * perPack, pack);
  }
}

__global__ void copyKernel(const uint4* source, uint4* input, const __grid_constant__ fcclDevicePush_t push) {
  produce(input, push, [=](int i) { return source[i]; });
}

__global__ void fillKernel(uint4* input, const uint32_t* call, const __grid_constant__ fcclDevicePush_t push) {
  const int rank = push.rank;
  produce(input, push, [=](int i) {
    __nv_bfloat16 values[8];
    for (int e = 0; e < 8; e++) values[e] = __int2bfloat16_rn(elementValue(int64_t{i} * 8 + e, rank, *call));
    uint4 pack;
    memcpy(&pack, values, sizeof(pack));
    return pack;
  });
}

template <class... Parameters, class... Arguments>
cudaError_t enqueue(void (*kernel)(Parameters...), PushLaunch how, cudaStream_t stream, Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(4);
  config.blockDim = dim3(256);
  config.stream = stream;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = how == PushLaunch::kProgrammatic ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace

cudaError_t pushInput(const void* source, void* input, const fcclDevicePush_t& push, PushLaunch how,
                      cudaStream_t stream) {
  return enqueue(copyKernel, how, stream, static_cast<const uint4*>(source), static_cast<uint4*>(input), push);
}

cudaError_t fillAndPush(void* input, const uint32_t* call, const fcclDevicePush_t& push, PushLaunch how,
                        cudaStream_t stream) {
  return enqueue(fillKernel, how, stream, static_cast<uint4*>(input), call, push);
}

cudaError_t loadPushKernels() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&copyKernel));
  if (error != cudaSuccess) return error;
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&fillKernel));
}

}  // namespace fccl::test
