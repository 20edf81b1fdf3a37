#include <cuda_bf16.h>

#include <algorithm>

#include "tests/gpu/device_checks.cuh"
#include "tests/gpu/device_checks.h"

namespace fccl::test {
namespace {

__global__ void fillKernel(__nv_bfloat16* input, int64_t count, int rank, const uint32_t* call) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    input[i] = __int2bfloat16_rn(elementValue(i, rank, *call));
  }
}

__global__ void checkKernel(const __nv_bfloat16* sum, int64_t first, int64_t count, int ranks, int added,
                            const uint32_t* call, uint32_t* wrong) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    int wanted = added;
    for (int r = 0; r < ranks; r++) wanted += elementValue(first + i, r, *call);
    if (__bfloat162float(sum[i]) != static_cast<float>(wanted)) atomicAdd(wrong, 1u);
  }
}

__global__ void nextKernel(uint32_t* call) { ++*call; }

// Few, so that they find room beside kernels that wait, but for large data.
int blocksFor(int64_t count) { return static_cast<int>(std::clamp<int64_t>(count >> 16, 4, 64)); }

__device__ uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__global__ void fillLateKernel(__nv_bfloat16* input, int64_t count, int rank, const uint32_t* call) {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
  for (const uint64_t end = nanoseconds() + 3000; nanoseconds() < end;) {
  }
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    input[i] = __int2bfloat16_rn(elementValue(i, rank, *call));
  }
}

__global__ void checkEarlyKernel(const __nv_bfloat16* sum, __nv_bfloat16* norm, int64_t count, int ranks,
                                 const uint32_t* call, uint32_t* wrong) {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    int wanted = 0;
    for (int r = 0; r < ranks; r++) wanted += elementValue(i, r, *call);
    if (__bfloat162float(sum[i]) != static_cast<float>(wanted) || __hisnan(norm[i])) atomicAdd(wrong, 1u);
    norm[i] = __ushort_as_bfloat16(0x7fff);
  }
}

__global__ void occupyKernel(uint64_t duration) {
  for (const uint64_t end = nanoseconds() + duration; nanoseconds() < end;) {
  }
}

// The same, with a quarter of a multiprocessor's registers where a quarter of its threads run it.
__global__ void holdRegistersKernel(uint64_t duration) {
  uint32_t held[18];
#pragma unroll
  for (uint32_t& value : held) asm volatile("mov.u32 %0, %%clock;" : "=r"(value));
  for (const uint64_t end = nanoseconds() + duration; nanoseconds() < end;) {
  }
#pragma unroll
  for (const uint32_t value : held) asm volatile("" ::"r"(value));
}

constexpr int kBlocks = 8;
constexpr int kThreads = 256;
constexpr uint32_t kPoison = 0xa5a5a5a5u;
constexpr uint32_t kCanary = 0x5c5c5c5cu;

// Grids of [kBlocks, kElements + 1]: y is the output, the last one the scales.
__device__ int64_t firstIndex() { return blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; }
__device__ int64_t step() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

__device__ uint4 all(uint32_t word) { return {word, word, word, word}; }

__device__ bool same(const uint4& a, const uint4& b) { return a.x == b.x && a.y == b.y && a.z == b.z && a.w == b.w; }

__global__ void prepareKernel(ExpectedOutputs outputs) {
  if (blockIdx.y < ExpectedOutputs::kElements) {
    const ExpectedOutputs::Elements& own = outputs.elements[blockIdx.y];
    if (own.actual == nullptr) return;
    for (int64_t i = firstIndex(); i < (own.bytes + ExpectedOutputs::kCanaryBytes) / 16; i += step()) {
      reinterpret_cast<uint4*>(own.actual)[i] = all(i < own.bytes / 16 ? kPoison : kCanary);
    }
    return;
  }
  const ExpectedOutputs::Scales& own = outputs.scales;
  if (own.actual == nullptr) return;
  for (int64_t i = firstIndex(); i < own.bytes + ExpectedOutputs::kCanaryBytes; i += step()) {
    own.actual[i] = static_cast<uint8_t>(i < own.bytes ? kPoison : kCanary);
  }
}

// Where the scale of a block stands, as fccl.h says.
__device__ int64_t scaleAt(int64_t m, int64_t k, int64_t blocks, fcclScaleLayout_t layout) {
  const int64_t tiles = (blocks + 3) / 4;
  if (layout == fcclScaleLinear) return m * blocks + k;
  if (layout == fcclScaleSwizzled8x4) return (m / 8) * tiles * 32 + (k / 4) * 32 + (m % 8) * 4 + k % 4;
  return (m / 128) * tiles * 512 + (k / 4) * 512 + (m % 32) * 16 + ((m % 128) / 32) * 4 + k % 4;
}

__device__ uint32_t wrongScales(const ExpectedOutputs::Scales& own) {
  const int64_t unit = own.layout == fcclScaleLinear ? 1 : own.layout == fcclScaleSwizzled8x4 ? 8 : 128;
  const int64_t rows = (own.tokens + unit - 1) / unit * unit;
  const int64_t columns = own.layout == fcclScaleLinear ? own.blocks : (own.blocks + 3) / 4 * 4;
  uint32_t wrong = rows * columns == own.bytes ? 0 : 1;
  for (int64_t i = firstIndex(); i < rows * columns; i += step()) {
    const int64_t m = i / columns;
    const int64_t k = i % columns;
    const uint8_t expected = m < own.tokens && k < own.blocks ? own.expected[m * own.blocks + k] : 0;
    if (own.actual[scaleAt(m, k, own.blocks, own.layout)] != expected) ++wrong;
  }
  for (int64_t i = firstIndex(); i < ExpectedOutputs::kCanaryBytes; i += step()) {
    if (own.actual[own.bytes + i] != static_cast<uint8_t>(kCanary)) ++wrong;
  }
  return wrong;
}

__device__ uint32_t wrongElements(const ExpectedOutputs::Elements& own) {
  const auto* const actual = reinterpret_cast<const uint4*>(own.actual);
  const int64_t pieces = own.bytes / 16;
  uint32_t wrong = 0;
  for (int64_t i = firstIndex(); i < pieces; i += step()) {
    if (!same(actual[i], reinterpret_cast<const uint4*>(own.expected)[i])) ++wrong;
  }
  for (int64_t i = firstIndex(); i < ExpectedOutputs::kCanaryBytes / 16; i += step()) {
    if (!same(actual[pieces + i], all(kCanary))) ++wrong;
  }
  return wrong;
}

__global__ void checkOutputsKernel(ExpectedOutputs outputs, uint32_t* wrong) {
  uint32_t mine = 0;
  if (blockIdx.y == ExpectedOutputs::kElements) {
    if (outputs.scales.actual != nullptr) mine = wrongScales(outputs.scales);
  } else if (outputs.elements[blockIdx.y].actual != nullptr) {
    mine = wrongElements(outputs.elements[blockIdx.y]);
  }
  if (mine != 0) atomicAdd(wrong, mine);
}

}  // namespace

cudaError_t fillInputLate(void* input, int64_t count, int rank, const uint32_t* call, cudaStream_t stream) {
  fillLateKernel<<<4, 256, 0, stream>>>(static_cast<__nv_bfloat16*>(input), count, rank, call);
  return cudaGetLastError();
}

cudaError_t checkSumEarly(const void* sum, void* norm, int64_t count, int ranks, const uint32_t* call, uint32_t* wrong,
                          cudaStream_t stream) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(4);
  config.blockDim = dim3(256);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, checkEarlyKernel, static_cast<const __nv_bfloat16*>(sum),
                            static_cast<__nv_bfloat16*>(norm), count, ranks, call, wrong);
}

cudaError_t occupy(int left, int milliseconds, cudaStream_t stream) {
  int device = 0;
  int multiprocessors = 0;
  int shared = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(occupyKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  }
  if (error != cudaSuccess) return error;
  // With all of its shared memory and threads a block leaves no room on its multiprocessor.
  occupyKernel<<<multiprocessors - left, 1024, static_cast<size_t>(shared), stream>>>(
      static_cast<uint64_t>(milliseconds) * 1'000'000u);
  return cudaGetLastError();
}

cudaError_t takeQuarter(cudaStream_t stream) {
  int device = 0;
  int shared = 0;
  int threads = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&threads, cudaDevAttrMaxThreadsPerMultiProcessor, device);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(holdRegistersKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared / 4);
  }
  if (error != cudaSuccess) return error;
  holdRegistersKernel<<<1, threads / 4, static_cast<size_t>(shared / 4), stream>>>(1'000'000u);
  return cudaGetLastError();
}

cudaError_t prepareOutputs(const ExpectedOutputs& outputs, cudaStream_t stream) {
  prepareKernel<<<dim3(kBlocks, ExpectedOutputs::kElements + 1), kThreads, 0, stream>>>(outputs);
  return cudaGetLastError();
}

cudaError_t checkOutputs(const ExpectedOutputs& outputs, uint32_t* wrong, cudaStream_t stream) {
  checkOutputsKernel<<<dim3(kBlocks, ExpectedOutputs::kElements + 1), kThreads, 0, stream>>>(outputs, wrong);
  return cudaGetLastError();
}

cudaError_t fillInput(void* input, int64_t count, int rank, const uint32_t* call, cudaStream_t stream) {
  fillKernel<<<blocksFor(count), 256, 0, stream>>>(static_cast<__nv_bfloat16*>(input), count, rank, call);
  return cudaGetLastError();
}

cudaError_t checkSum(const void* sum, int64_t first, int64_t count, int ranks, int added, const uint32_t* call,
                     uint32_t* wrong, cudaStream_t stream) {
  checkKernel<<<blocksFor(count), 256, 0, stream>>>(static_cast<const __nv_bfloat16*>(sum), first, count, ranks, added,
                                                    call, wrong);
  return cudaGetLastError();
}

cudaError_t nextCall(uint32_t* call, cudaStream_t stream) {
  nextKernel<<<1, 1, 0, stream>>>(call);
  return cudaGetLastError();
}

cudaError_t loadDeviceChecks() {
  cudaFuncAttributes attributes;
  for (const void* kernel :
       {reinterpret_cast<const void*>(&fillKernel), reinterpret_cast<const void*>(&checkKernel),
        reinterpret_cast<const void*>(&nextKernel), reinterpret_cast<const void*>(&fillLateKernel),
        reinterpret_cast<const void*>(&checkEarlyKernel), reinterpret_cast<const void*>(&occupyKernel),
        reinterpret_cast<const void*>(&holdRegistersKernel), reinterpret_cast<const void*>(&prepareKernel),
        reinterpret_cast<const void*>(&checkOutputsKernel)}) {
    if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace fccl::test
