// What a call on GPUs would take, from latency and bandwidth. For decisions where no table has an answer, and for
// explain. docs/performance.md compares it with what was measured.
#pragma once

#include <algorithm>
#include <optional>

#include "tuner/registry.h"

namespace fccl {

struct Cost {
  double fixedMicroseconds = 0;   // launch, flags, norm: whatever the bytes
  double linkMicroseconds = 0;    // bytes over the slowest link
  double memoryMicroseconds = 0;  // bytes over the memory of a GPU, for all ranks on it
  // Links and memory are busy at the same time.
  double total() const { return fixedMicroseconds + std::max(linkMicroseconds, memoryMicroseconds); }
};

// None for strategies that have no model, HOST, and rates that are not known.
std::optional<Cost> predict(const char* strategy, const Query& query, const Facts& facts);

}  // namespace fccl
