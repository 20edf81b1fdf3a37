// The sum of squares of a row that lies in the registers of a block, or of a cluster of blocks.
//
// Order: the elements of a pack, a lane tree over 32 packs, then the groups of 32 packs: lane l adds groups l, l + 32,
// ..., and a tree adds the lanes. A function of the row length only.
#pragma once

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/forms.h"

namespace fccl::cuda {

FCCL_TEAM_FN float warpSum(float v) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) v = __fadd_rn(v, __shfl_xor_sync(0xffffffffu, v, step));
  return v;
}

template <uint32_t formCode>
class RowSum {
 public:
  static constexpr Form form = Form::of(formCode);
  static constexpr int kPacks = form.packs;
  // Partial sums of a row: as many as its packs, 32 together. 64 Ki elements of 16 bits.
  static constexpr int kGroups = form.cluster ? 256 : 32 * kPacks;
  // Shared memory of a block.
  struct Memory {
    float partials[2][kGroups];  // of the squares of 32 packs; two, for a row and the next
    alignas(8) uint64_t barrier[2];
  };

  FCCL_TEAM_FN explicit RowSum(Memory& memory) : memory_(memory) {}

  // Before the first sum, by all threads.
  FCCL_TEAM_FN void begin() {
    if constexpr (form.cluster) {
      if (threadIdx.x == 0) {
        initBarrier(&memory_.barrier[0]);
        initBarrier(&memory_.barrier[1]);
        expectBytes(&memory_.barrier[0], bytes());
        if (!form.once) expectBytes(&memory_.barrier[1], bytes());
      }
      clusterArrive();
    }
  }
  // By a block that takes no sum: the others of its cluster take none either.
  FCCL_TEAM_FN void endWithout() {
    if constexpr (form.cluster) clusterWait();
  }

  // `part`: this block's number in the row. `rows`: how many sums this block takes in all.
  FCCL_TEAM_FN float sum(const float (&squares)[kPacks], int part, int rows) {
    const auto warps = static_cast<int>(blockDim.x / 32);
    const auto lane = static_cast<int>(threadIdx.x % 32);
    const auto warp = static_cast<int>(threadIdx.x / 32);
    float* partials = memory_.partials[sums_ & 1];
    uint64_t* barrier = &memory_.barrier[sums_ & 1];
    const bool sends = form.cluster && !isAlone();
    if constexpr (form.cluster) {
      if (sums_ == 0) clusterWait();  // the other blocks' barriers are there
    }
#pragma unroll
    for (int k = 0; k < kPacks; k++) {
      const float ofWarp = warpSum(squares[k]);
      float* at = &partials[(part * kPacks + k) * warps + warp];
      if (sends) {
        if (lane < static_cast<int>(clusterBlocks())) sendPartial(at, ofWarp, barrier, static_cast<uint32_t>(lane));
      } else if (lane == 0) {
        *at = ofWarp;
      }
    }
    if (sends) {
      awaitPhase(barrier, static_cast<uint32_t>(sums_ >> 1 & 1));
      // For the row after the next. Partials of that come only after every block of the cluster has had the next row's
      // from all warps here, which by then have read this row's.
      if (threadIdx.x == 0 && sums_ + 2 < rows) expectBytes(barrier, bytes());
    } else {
      __syncthreads();
    }
    sums_++;
    const int groups = kPacks * warps * (form.cluster ? static_cast<int>(clusterBlocks()) : 1);
    float total = lane < groups ? partials[lane] : 0.0f;
    if constexpr (kGroups > 32) {
#pragma unroll 1
      for (int g = lane + 32; g < groups; g += 32) total = __fadd_rn(total, partials[g]);
    }
    return warpSum(total);
  }

 private:
  // A cluster of one block keeps its partials as blocks do: st.async is for clusters of two and more. Those that take
  // one row always are.
  static FCCL_TEAM_FN bool isAlone() { return !form.once && clusterBlocks() == 1; }
  static FCCL_TEAM_FN uint32_t bytes() { return clusterBlocks() * kPacks * (blockDim.x / 32) * 4u; }

  Memory& memory_;
  int sums_ = 0;
};

}  // namespace fccl::cuda
