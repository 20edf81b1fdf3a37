// Memory of an exact size with an inaccessible page right behind it (or right before it): one byte too far is a fault
// at once. The rest of the pages holds a canary.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fccl::test {

class GuardedBuffer {
 public:
  enum class Guard { kAfter, kBefore };

  GuardedBuffer() = default;
  // `bytes` bytes of poison. kAfter: the last byte is the last before the guard page, so the start is aligned to
  // whatever divides `bytes` and 4096. kBefore: starts at a page border. There is a guard page at the other end as
  // well. `gap` bytes of canary are left between the buffer and the guard page, to choose another alignment.
  explicit GuardedBuffer(size_t bytes, Guard guard = Guard::kAfter, size_t gap = 0);
  GuardedBuffer(GuardedBuffer&& other) noexcept;
  GuardedBuffer& operator=(GuardedBuffer&& other) noexcept;
  ~GuardedBuffer();

  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  uint8_t* bytes() const { return data_; }
  size_t size() const { return size_; }

  // The byte that position `i` is poisoned with; no two neighbours are alike, and no element of poison is 0.
  static uint8_t poison(size_t i) { return static_cast<uint8_t>(0xa1 + i % 89); }
  void fillPoison();
  // True while every byte of the buffer still is poison.
  bool untouched() const;
  // True while the canary around the buffer is whole.
  bool canaryWhole() const;

 private:
  char* mapping_ = nullptr;
  size_t mapped_ = 0;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fccl::test
