// The epoch of a call, which stands in device memory so that a replayed graph finds it where the call before left it:
// one word for each block of the largest usual grid, all the same between two calls, so that a block may move its words
// on as soon as its own threads have read one. A larger grid reads one word, and the block that has arrived last moves
// all on. Either way no block waits for another.
#pragma once

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/team_macros.h"

namespace fccl::cuda {

FCCL_TEAM_FN bool countsArrivals() { return gridDim.x > kEpochWords; }

// After waitForPrevious(), by every thread that needs it.
FCCL_TEAM_FN uint32_t readEpoch(DeviceState* state) {
  return *static_cast<volatile uint32_t*>(&state->epochs[countsArrivals() ? 0 : blockIdx.x]);
}

// By one warp, when all threads of the block have read the epoch.
FCCL_TEAM_FN void moveEpochOn(DeviceState* state, uint32_t epoch) {
  const uint32_t next = epoch == 2 ? 0 : epoch + 1;
  const uint32_t lane = threadIdx.x % 32;
  uint32_t first = blockIdx.x;
  uint32_t step = gridDim.x;
  if (countsArrivals()) [[unlikely]] {
    uint32_t arrived = 0;
    if (lane == 0) arrived = atomicInc(&state->arrived, gridDim.x - 1);
    if (__shfl_sync(0xffffffffu, arrived, 0) != gridDim.x - 1) return;
    first = 0;
    step = 1;
  }
  for (uint32_t i = first + lane * step; i < kEpochWords; i += 32 * step) {
    *static_cast<volatile uint32_t*>(&state->epochs[i]) = next;
  }
}

// Only the last warp waits for the others, and is told so by true. Barrier 1: __syncthreads() is barrier 0.
FCCL_TEAM_FN bool arriveAtBlockBarrier() {
  if (threadIdx.x / 32 == blockDim.x / 32 - 1) {
    asm volatile("barrier.sync.aligned 1, %0;" ::"r"(blockDim.x) : "memory");
    return true;
  }
  asm volatile("barrier.arrive.aligned 1, %0;" ::"r"(blockDim.x) : "memory");
  return false;
}

}  // namespace fccl::cuda
