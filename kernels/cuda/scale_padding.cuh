// The bytes of an NVFP4 scale layout that belong to no row or no block of columns: written as zero.
#pragma once

#include "kernels/cuda/quantizer.cuh"

namespace fccl::cuda {

FCCL_TEAM_FN void zero4(uint8_t* at) {
  if (reinterpret_cast<uintptr_t>(at) % 4 == 0) {
    *reinterpret_cast<uint32_t*>(at) = 0;
    return;
  }
  for (int i = 0; i < 4; i++) at[i] = 0;
}

// By `threads` threads, a multiple of 32, of which this is number `thread`; thread % 32 is its lane. `rows`: of this
// launch; only that with the call's last row has something to do.
FCCL_TEAM_FN void zeroScalePadding(const RowArgs& a, uint32_t rows, uint32_t cols, uint32_t thread, uint32_t threads) {
  const auto end = static_cast<uint32_t>(a.allRows);
  if (static_cast<uint32_t>(a.firstRow) + rows != end) return;
  const uint32_t blocks = cols / kNvfp4Block;
  const uint32_t tiles = (blocks + 3) / 4;
  if (a.scaleLayout == fcclScaleSwizzled128x4 && end % 128 != 0) {
    // 16 bytes hold the scales of rows m, m + 32, m + 64, m + 96: those past the last row.
    const uint32_t used = end % 128;
    const uint32_t m = threadIdx.x % 32;  // unit % 32
    const uint32_t usedHere = used > m ? (used - m + 31) / 32 : 0;
    uint8_t* tile = a.scaleOut + static_cast<uint64_t>(end / 128) * tiles * 512;
    const bool wide = reinterpret_cast<uintptr_t>(tile) % 16 == 0;
    for (uint32_t unit = thread; unit < tiles * 32; unit += threads) {
      uint8_t* at = tile + unit * 16;
      if (wide) {
        if (usedHere == 0) *reinterpret_cast<uint4*>(at) = make_uint4(0, 0, 0, 0);
        if (usedHere == 1 || usedHere == 3) *reinterpret_cast<uint32_t*>(at + 4 * usedHere) = 0;
        if (usedHere == 1 || usedHere == 2) *reinterpret_cast<uint2*>(at + 8) = make_uint2(0, 0);
      } else {
#pragma unroll 1
        for (uint32_t q = usedHere; q < 4; q++) zero4(at + 4 * q);
      }
    }
  } else if (a.scaleLayout == fcclScaleSwizzled8x4) {
    const uint32_t past = (8 - end % 8) % 8;
    for (uint32_t i = thread; i < past * tiles; i += threads) {
      zero4(a.scaleOut + scaleOffset(a.scaleLayout, end + i / tiles, i % tiles * 4, blocks));
    }
  }
  if (a.scaleLayout == fcclScaleLinear || blocks % 4 == 0) return;
  const uint32_t each = 4 - blocks % 4;
  for (uint32_t i = thread; i < end * each; i += threads) {
    a.scaleOut[scaleOffset(a.scaleLayout, i / each, blocks + i % each, blocks)] = 0;
  }
}

}  // namespace fccl::cuda
