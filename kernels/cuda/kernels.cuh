// The kernels of one data type: protocol texts instantiated for the CUDA team, and their launch.
#pragma once

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/team.cuh"
#include "kernels/oneshot.h"
#include "kernels/twoshot.h"

namespace fccl::cuda {

constexpr int kMaxPacksPerThread = 4;

// Arguments stay in constant memory: a copy indexed by rank would get a frame in local memory.
template <class D, Protocol protocol, bool norm, int packsPerThread, bool aligned>
__global__ void collectiveKernel(const __grid_constant__ CudaWorld world, const __grid_constant__ RowArgs rows) {
  __shared__ float partials[32 * kMaxPacksPerThread];
  __shared__ uint32_t epoch;
  BlockTeam<D, packsPerThread, aligned> team(world, rows, partials, &epoch);
  if constexpr (protocol == Protocol::kOneshot) oneshot<RuntimePattern<norm>>(team, rows);
  if constexpr (protocol == Protocol::kTwoshot) twoshot<RuntimePattern<norm>>(team, rows);
}

template <class D, Protocol protocol, bool norm>
cudaError_t launchPattern(const CudaWorld& world, const RowArgs& rows, const LaunchShape& shape, bool aligned,
                          cudaStream_t stream) {
  const int64_t packs = (rows.cols + D::kElements - 1) / D::kElements;
  const auto run = [&](auto kernel) {
    kernel<<<shape.blocks, shape.threads, 0, stream>>>(world, rows);
    return cudaGetLastError();
  };
  if (packs <= shape.threads && aligned) return run(collectiveKernel<D, protocol, norm, 1, true>);
  if (packs <= shape.threads * kMaxPacksPerThread) {
    return aligned ? run(collectiveKernel<D, protocol, norm, kMaxPacksPerThread, true>)
                   : run(collectiveKernel<D, protocol, norm, kMaxPacksPerThread, false>);
  }
  return cudaErrorInvalidValue;
}

template <class D>
cudaError_t launchType(Protocol protocol, const CudaWorld& world, const RowArgs& rows, const LaunchShape& shape,
                       cudaStream_t stream) {
  constexpr size_t kBytes = 16 / D::kElements;
  if (epochBytes(world.ranks, rows.rows, rows.cols, kBytes) > world.epochBytes) return cudaErrorInvalidValue;
  bool aligned = rows.cols % D::kElements == 0;
  for (const void* p : {rows.input, rows.residual, rows.weight, static_cast<const void*>(rows.reducedOut),
                        static_cast<const void*>(rows.residualOut), static_cast<const void*>(rows.normOut)}) {
    aligned = aligned && reinterpret_cast<uintptr_t>(p) % 16 == 0;
  }
  const bool norm = rows.weight != nullptr;
  if (protocol == Protocol::kOneshot) {
    return norm ? launchPattern<D, Protocol::kOneshot, true>(world, rows, shape, aligned, stream)
                : launchPattern<D, Protocol::kOneshot, false>(world, rows, shape, aligned, stream);
  }
  return norm ? launchPattern<D, Protocol::kTwoshot, true>(world, rows, shape, aligned, stream)
              : launchPattern<D, Protocol::kTwoshot, false>(world, rows, shape, aligned, stream);
}

template <class D, Protocol protocol, bool norm>
cudaError_t loadPattern() {
  for (const auto kernel : {collectiveKernel<D, protocol, norm, 1, true>,
                            collectiveKernel<D, protocol, norm, kMaxPacksPerThread, true>,
                            collectiveKernel<D, protocol, norm, kMaxPacksPerThread, false>}) {
    cudaFuncAttributes attributes;
    if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <class D>
cudaError_t loadType() {
  for (const auto load : {loadPattern<D, Protocol::kOneshot, false>, loadPattern<D, Protocol::kOneshot, true>,
                          loadPattern<D, Protocol::kTwoshot, false>, loadPattern<D, Protocol::kTwoshot, true>}) {
    if (const cudaError_t error = load(); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t loadBf16();
cudaError_t loadFp16();
cudaError_t loadFp32();
cudaError_t launchBf16(Protocol protocol, const CudaWorld& world, const RowArgs& rows, const LaunchShape& shape,
                       cudaStream_t stream);
cudaError_t launchFp16(Protocol protocol, const CudaWorld& world, const RowArgs& rows, const LaunchShape& shape,
                       cudaStream_t stream);
cudaError_t launchFp32(Protocol protocol, const CudaWorld& world, const RowArgs& rows, const LaunchShape& shape,
                       cudaStream_t stream);

}  // namespace fccl::cuda
