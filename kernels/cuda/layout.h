// What planning all CUDA kernels has in common.
#pragma once

#include "kernels/cuda/forms.h"

namespace fccl::cuda {

constexpr int kMaxCluster = 8;  // what every device with clusters grants
constexpr int kWarp = 32;

constexpr int64_t divideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int wholeWarps(int64_t threads) { return static_cast<int>(divideUp(threads, kWarp) * kWarp); }

constexpr int64_t packsPerRow(const Shape& shape) {
  return divideUp(shape.cols * static_cast<int64_t>(elementBytes(shape.dtype)), 16);
}

// A kernel, and how the packs of a row (without norm: of the call) are laid over threads.
struct Layout {
  Form form;
  int threads = 0;
  int cluster = 1;
  bool allAtOnce = false;  // only where every row has a block
};

// Blocks that may run at the same time for each of the ranks that share the device. Their kernels wait for each other,
// so all must fit at once. The next launches' blocks take no room from them: they come when every block of a grid has
// polled, and so every peer's block has sent. Clusters are not always granted the occupancy that is counted for them.
cudaError_t blocksOfOneRank(const void* kernel, const Layout& layout, const DeviceFacts& facts, int* blocks);

}  // namespace fccl::cuda
