// The processor's floating-point mode during a collective: round to nearest, subnormals kept, no exceptions raised. A
// rank whose thread flushes subnormals would otherwise compute other bits than its peers.
#pragma once

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace fccl {

class DefaultFloatMode {
 public:
#if defined(__SSE__)
  DefaultFloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(kAllMasked); }
  ~DefaultFloatMode() { _mm_setcsr(saved_); }

 private:
  static constexpr unsigned int kAllMasked = 0x1f80;
  unsigned int saved_;

 public:
#else
  DefaultFloatMode() = default;
  ~DefaultFloatMode() {}
#endif
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;
};

}  // namespace fccl
