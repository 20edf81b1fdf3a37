#include "lib/overlap.h"

namespace fccl {
namespace {

[[gnu::noinline, gnu::cold]] Status overlapFailure(const Buffer& output, const Buffer& other, bool aliasable) {
  return failure(fcclInvalidArgument,
                 "{} [{:#x}, {:#x}) overlaps {} [{:#x}, {:#x}); an output shares no memory with another buffer{}.",
                 output.name, output.start, output.start + output.bytes, other.name, other.start,
                 other.start + other.bytes, aliasable ? ", or is exactly the same buffer (in place)" : "");
}

}  // namespace

int BufferList::add(const char* name, const void* start, size_t bytes, bool output, int aliasable) {
  if (start == nullptr || bytes == 0) return -1;
  buffers_[count_] = {name, reinterpret_cast<uintptr_t>(start), bytes, output};
  aliasable_[count_] = aliasable;
  return count_++;
}

Status BufferList::check() const {
  for (int i = 1; i < count_; i++) {
    const Buffer& b = buffers_[i];
    for (int j = 0; j < i; j++) {
      const Buffer& a = buffers_[j];
      if (a.start + a.bytes <= b.start || b.start + b.bytes <= a.start) continue;
      if (!a.output && !b.output) continue;
      const bool mayAlias = aliasable_[i] == j;
      if (mayAlias && a.start == b.start && a.bytes == b.bytes) continue;
      return overlapFailure(b, a, mayAlias);
    }
  }
  return {};
}

}  // namespace fccl
