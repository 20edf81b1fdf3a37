// Data made on the GPU.
#pragma once

#include <cstdint>

namespace fccl::test {

// A small integer that depends on the element, the rank and the call.
__device__ inline int elementValue(int64_t i, int rank, uint32_t call) {
  return static_cast<int>((static_cast<uint32_t>(i) * 7u + call * 13u + static_cast<uint32_t>(rank) * 5u) % 29u) - 14;
}

}  // namespace fccl::test
