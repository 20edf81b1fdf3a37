// The windows of one communicator: buffers that all ranks have mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "transport/symmetric_memory.h"

// What fcclWindow_t points at.
struct fcclWindow {
  uint32_t number = 0;  // counts the windows of the communicator; the same on all ranks
  char* start = nullptr;
  size_t bytes = 0;
  std::unique_ptr<fccl::SymmetricMemory> memory;
  // peer r's copy of an address in the window lies at deltas[r] bytes from the own one.
  std::vector<ptrdiff_t> deltas;
  bool aligned = true;  // all deltas are multiples of 16
};

namespace fccl {

class WindowTable {
 public:
  bool empty() const { return windows_.empty(); }

  // The window that holds all of [start, start + bytes), or NULL.
  const fcclWindow* find(const void* start, size_t bytes) const {
    const auto* from = static_cast<const char*>(start);
    for (const auto& window : windows_) {
      if (from >= window->start && bytes <= window->bytes &&
          static_cast<size_t>(from - window->start) <= window->bytes - bytes) {
        return window.get();
      }
    }
    return nullptr;
  }
  // NULL where `window` is none of this communicator's.
  const fcclWindow* find(fcclWindow_t window) const;

  fcclWindow_t add(std::unique_ptr<SymmetricMemory> memory, void* start, size_t bytes, int rank, int ranks);
  void remove(fcclWindow_t window);

 private:
  std::vector<std::unique_ptr<fcclWindow>> windows_;
  uint32_t next_ = 0;
};

}  // namespace fccl
