// The same protocol text is compiled for a team of GPU threads and for one CPU thread.
#pragma once

#if defined(__CUDACC__)
#define FCCL_TEAM_FN __device__ __forceinline__
#define FCCL_BOTH_FN __host__ __device__ __forceinline__
// The second pass of a row: part of the kernel on the GPU; on the host one function for all kernels of a data type.
#define FCCL_ROW_FN __device__ __forceinline__
#define FCCL_TEAM_LAMBDA
#else
#define FCCL_TEAM_FN inline __attribute__((always_inline))
#define FCCL_BOTH_FN inline __attribute__((always_inline))
#define FCCL_ROW_FN __attribute__((noinline))
#define FCCL_TEAM_LAMBDA __attribute__((always_inline))
#endif
