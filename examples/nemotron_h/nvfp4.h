// What of NVFP4 the separate pass and the reference share: where scales stand.
#ifndef EXAMPLES_NEMOTRON_H_NVFP4_H_
#define EXAMPLES_NEMOTRON_H_NVFP4_H_

#include <cstdint>

constexpr int64_t kBlock = 16;  // elements that share a scale

// Byte of the scale of block `block` of row `row` in the layout SWIZZLED_128x4 (fccl.h).
constexpr int64_t scaleOffset(int64_t row, int64_t block, int64_t hidden) {
  const int64_t tiles = (hidden / kBlock + 3) / 4;
  return row / 128 * tiles * 512 + block / 4 * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
}

#endif  // EXAMPLES_NEMOTRON_H_NVFP4_H_
