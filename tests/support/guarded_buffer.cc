#include "tests/support/guarded_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <system_error>
#include <utility>

namespace fccl::test {
namespace {

constexpr int kCanary = 0x5c;

size_t pageBytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

GuardedBuffer::GuardedBuffer(size_t bytes, Guard guard, size_t gap) : size_(bytes) {
  const size_t page = pageBytes();
  const size_t inner = (bytes + gap + page - 1) / page * page;
  mapped_ = inner + 2 * page;
  void* mapping = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap of a guarded buffer");
  mapping_ = static_cast<char*>(mapping);
  char* start = mapping_ + page;
  if (inner != 0 && mprotect(start, inner, PROT_READ | PROT_WRITE) != 0) {
    throw std::system_error(errno, std::generic_category(), "mprotect of a guarded buffer");
  }
  data_ = reinterpret_cast<uint8_t*>(guard == Guard::kAfter ? start + inner - gap - bytes : start + gap);
  std::memset(start, kCanary, static_cast<size_t>(reinterpret_cast<char*>(data_) - start));
  char* end = reinterpret_cast<char*>(data_) + bytes;
  std::memset(end, kCanary, static_cast<size_t>(start + inner - end));
  fillPoison();
}

GuardedBuffer::GuardedBuffer(GuardedBuffer&& other) noexcept { *this = std::move(other); }

GuardedBuffer& GuardedBuffer::operator=(GuardedBuffer&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_, other.mapped_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

GuardedBuffer::~GuardedBuffer() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
}

void GuardedBuffer::fillPoison() {
  for (size_t i = 0; i < size_; ++i) data_[i] = poison(i);
}

bool GuardedBuffer::untouched() const {
  for (size_t i = 0; i < size_; ++i) {
    if (data_[i] != poison(i)) return false;
  }
  return true;
}

bool GuardedBuffer::canaryWhole() const {
  if (mapping_ == nullptr) return true;
  const uint8_t* start = reinterpret_cast<const uint8_t*>(mapping_) + pageBytes();
  const uint8_t* end = reinterpret_cast<const uint8_t*>(mapping_) + mapped_ - pageBytes();
  for (const uint8_t* p = start; p < end; ++p) {
    if ((p < data_ || p >= data_ + size_) && *p != kCanary) return false;
  }
  return true;
}

}  // namespace fccl::test
