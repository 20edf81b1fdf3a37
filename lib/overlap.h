// Which buffers of one call may share memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace fccl {

struct Buffer {
  const char* name = nullptr;
  uintptr_t start = 0;
  size_t bytes = 0;
  bool output = false;
};

// The buffers of one call, NULL and empty ones left out. An output may overlap nothing but the buffer that add() has
// paired it with, and that only where start and size are equal.
class BufferList {
 public:
  // `aliasable`: index of an earlier buffer that may be the same memory, -1: none. Returns the index of the new one, or
  // -1 if it is NULL or empty.
  int add(const char* name, const void* start, size_t bytes, bool output, int aliasable = -1);
  Status check() const;

 private:
  static constexpr int kCapacity = 10;
  Buffer buffers_[kCapacity];
  int aliasable_[kCapacity];
  int count_ = 0;
};

}  // namespace fccl
