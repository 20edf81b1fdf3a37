// A plain tiled GEMM on tensor cores: a block of four warps makes a tile of 64 x 64, tiles of the operands come through
// shared memory in four stages. What this example is about is its epilogue.
#include <cuda_bf16.h>
#include <cuda_pipeline.h>
#include <mma.h>

#include <type_traits>

#include "gemm.h"

namespace {

using nvcuda::wmma::accumulator;
using nvcuda::wmma::fragment;
using nvcuda::wmma::matrix_a;
using nvcuda::wmma::matrix_b;
using nvcuda::wmma::row_major;

constexpr int kTile = 64;                  // rows, columns, and depth of a stage
constexpr int kFragment = 16;              // of the tensor cores
constexpr int kWarps = kTile / kFragment;  // each has 16 columns of the tile
constexpr int kThreads = 32 * kWarps;
constexpr int kStages = 4;
constexpr int kPack = 8;  // elements in 16 bytes
constexpr int kPacksPerRow = kTile / kPack;
constexpr int kPitch = kTile + kPack;  // of operands in shared memory: away from bank conflicts
constexpr int kSumPitch = kTile + 4;

struct Stage {
  __nv_bfloat16 activations[kTile * kPitch];
  __nv_bfloat16 weights[kTile * kPitch];
};
union Memory {
  Stage stages[kStages];
  float sums[kTile * kSumPitch];
};

struct NoPush {};

__device__ void load(const Gemm& g, int row0, int column0, int depth0, Stage& stage) {
  const auto* activations = static_cast<const __nv_bfloat16*>(g.activations);
  const auto* weights = static_cast<const __nv_bfloat16*>(g.weights);
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kPacksPerRow; i += kThreads) {
    const int line = i / kPacksPerRow;
    const int at = i % kPacksPerRow * kPack;
    if (row0 + line < g.tokens) {
      __pipeline_memcpy_async(&stage.activations[line * kPitch + at],
                              &activations[static_cast<size_t>(row0 + line) * g.k + depth0 + at], 16);
    }
    __pipeline_memcpy_async(&stage.weights[line * kPitch + at],
                            &weights[static_cast<size_t>(depth0 + line) * g.hidden + column0 + at], 16);
  }
}

__device__ uint4 roundedPack(const float* sums) {
  uint4 pack;
  auto* pairs = reinterpret_cast<__nv_bfloat162*>(&pack);
  for (int i = 0; i < kPack / 2; i++) pairs[i] = __floats2bfloat162_rn(sums[2 * i], sums[2 * i + 1]);
  return pack;
}

template <class Push>
__global__ void __launch_bounds__(kThreads) gemmKernel(const Gemm g, const __grid_constant__ Push push) {
  constexpr bool kPushes = std::is_same_v<Push, fcclDevicePush_t>;
  extern __shared__ __align__(128) unsigned char shared[];
  Memory& memory = *reinterpret_cast<Memory*>(shared);
  const int column0 = static_cast<int>(blockIdx.x) * kTile;
  const int row0 = static_cast<int>(blockIdx.y) * kTile;
  const int rows = min(kTile, g.tokens - row0);
  const int fragments = (rows + kFragment - 1) / kFragment;
  const int warp = static_cast<int>(threadIdx.x) / 32;

  // This kernel may begin before the one before it has ended, which made the activations, and still reads `partial`.
  // The epoch is asked for here, so that it has come long before the epilogue needs it.
  fcclPushWaitForPrevious();
  [[maybe_unused]] fcclPushEpoch_t epoch{};
  if constexpr (kPushes) epoch = fcclPushBegin(push);

  fragment<accumulator, kFragment, kFragment, kFragment, float> sums[kTile / kFragment];
#pragma unroll
  for (auto& sum : sums) nvcuda::wmma::fill_fragment(sum, 0.0f);

  const int depth = g.k / kTile;
  for (int s = 0; s < kStages - 1; s++) {
    if (s < depth) load(g, row0, column0, s * kTile, memory.stages[s]);
    __pipeline_commit();
  }
  for (int d = 0; d < depth; d++) {
    __pipeline_wait_prior(kStages - 2);
    __syncthreads();  // stage d is here, and nobody reads the one that is loaded next any more
    const int next = d + kStages - 1;
    if (next < depth) load(g, row0, column0, next * kTile, memory.stages[next % kStages]);
    __pipeline_commit();
    const Stage& stage = memory.stages[d % kStages];
#pragma unroll
    for (int k = 0; k < kTile; k += kFragment) {
      fragment<matrix_b, kFragment, kFragment, kFragment, __nv_bfloat16, row_major> b;
      nvcuda::wmma::load_matrix_sync(b, &stage.weights[k * kPitch + warp * kFragment], kPitch);
#pragma unroll
      for (int i = 0; i < kTile / kFragment; i++) {
        // Rows past the last token hold whatever was there; nobody looks at their sums.
        if (i >= fragments) continue;
        fragment<matrix_a, kFragment, kFragment, kFragment, __nv_bfloat16, row_major> a;
        nvcuda::wmma::load_matrix_sync(a, &stage.activations[i * kFragment * kPitch + k], kPitch);
        nvcuda::wmma::mma_sync(sums[i], a, b, sums[i]);
      }
    }
  }

#if __CUDA_ARCH__ >= 900
  // The all-reduce may be launched; it waits until this kernel has ended before it reads anything.
  cudaTriggerProgrammaticLaunchCompletion();
#endif
  __pipeline_wait_prior(0);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTile / kFragment; i++) {
    if (i >= fragments) continue;
    nvcuda::wmma::store_matrix_sync(&memory.sums[i * kFragment * kSumPitch + warp * kFragment], sums[i], kSumPitch,
                                    nvcuda::wmma::mem_row_major);
  }
  __syncthreads();
  // The epilogue: 16 bytes at a time into the own buffer, which this rank's all-reduce reads, and into the slots of the
  // peers, whose all-reduce waits for them.
  for (int i = static_cast<int>(threadIdx.x); i < rows * kPacksPerRow; i += kThreads) {
    const int row = row0 + i / kPacksPerRow;
    const int column = column0 + i % kPacksPerRow * kPack;
    const uint4 pack = roundedPack(&memory.sums[(row - row0) * kSumPitch + column - column0]);
    *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(g.partial) + static_cast<size_t>(row) * g.hidden + column) =
        pack;
    if constexpr (kPushes) fcclPushPack(push, epoch, row, column, pack);
  }
}

template <class Push>
cudaError_t launch(const Gemm& gemm, const Push& push, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(gemm.hidden / kTile), static_cast<unsigned>((gemm.tokens + kTile - 1) / kTile));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(Memory);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, gemmKernel<Push>, gemm, push);
}

template <class Push>
cudaError_t loadOne() {
  return cudaFuncSetAttribute(gemmKernel<Push>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Memory));
}

}  // namespace

cudaError_t loadGemm() {
  const cudaError_t error = loadOne<NoPush>();
  return error != cudaSuccess ? error : loadOne<fcclDevicePush_t>();
}

cudaError_t multiply(const Gemm& gemm, cudaStream_t stream) { return launch(gemm, NoPush{}, stream); }

cudaError_t multiplyAndPush(const Gemm& gemm, const fcclDevicePush_t& push, cudaStream_t stream) {
  return launch(gemm, push, stream);
}
