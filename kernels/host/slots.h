// Access to Lamport slots, which two ranks read and write without a lock: the payload is its own flag.
#pragma once

#include "kernels/host/simd.h"

// On x86 without a race checker, vector loads and stores are used: words are written whole, and stores of one rank are
// seen in order, which the re-arming relies on (see acquireSlots). Elsewhere 64-bit relaxed atomics and fences.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define FCCL_VECTOR_SLOTS 1
#else
#define FCCL_VECTOR_SLOTS 0
#endif

namespace fccl::host {
namespace {

template <class Raw>
FCCL_TEAM_FN Raw slotLoadPlain(const char* at) {
  Raw raw;
  __builtin_memcpy(&raw, at, sizeof raw);
  return raw;
}

template <class Isa, class Raw>
FCCL_TEAM_FN Raw slotLoad(const char* at) {
#if FCCL_VECTOR_SLOTS
  // One load, and what was looked at is what is used: without the pin the compiler may load the pack once for the
  // values and again, later, for the look at the sentinel, which by then has been replaced.
  Raw raw = slotLoadPlain<Raw>(at);
  Isa::pin(raw);
  return raw;
#else
  uint64_t words[sizeof(Raw) / 8];
  const auto* from = reinterpret_cast<const uint64_t*>(at);
  for (size_t i = 0; i < sizeof(Raw) / 8; i++) words[i] = __atomic_load_n(from + i, __ATOMIC_RELAXED);
  return slotLoadPlain<Raw>(reinterpret_cast<const char*>(words));
#endif
}

template <class Raw>
FCCL_TEAM_FN void slotStore(char* at, Raw raw) {
#if FCCL_VECTOR_SLOTS
  __builtin_memcpy(at, &raw, sizeof raw);
#else
  uint64_t words[sizeof(Raw) / 8];
  __builtin_memcpy(words, &raw, sizeof raw);
  auto* to = reinterpret_cast<uint64_t*>(at);
  for (size_t i = 0; i < sizeof(Raw) / 8; i++) __atomic_store_n(to + i, words[i], __ATOMIC_RELAXED);
#endif
}

template <class Raw>
FCCL_TEAM_FN Raw sentinelPack() {
  VectorOf<uint32_t, sizeof(Raw) / 4> words{};
  words += kSentinel;
  Raw raw;
  __builtin_memcpy(&raw, &words, sizeof raw);
  return raw;
}

// A writer may put chunk i into a slot because it has received something that the reader sent after re-arming the slot.
// That chain needs order at both ends: the reader's re-arming stores before its next payload stores (releaseSlots), the
// writer's payload loads before its next payload stores (acquireSlots). x86 gives both; there they only bind the
// compiler. The race checker does not model fences, and needs none here, since all accesses are atomic.
FCCL_TEAM_FN void releaseSlots() {
#if FCCL_VECTOR_SLOTS || defined(__SANITIZE_THREAD__)
  __atomic_signal_fence(__ATOMIC_RELEASE);
#else
  __atomic_thread_fence(__ATOMIC_RELEASE);
#endif
}
FCCL_TEAM_FN void acquireSlots() {
#if FCCL_VECTOR_SLOTS || defined(__SANITIZE_THREAD__)
  __atomic_signal_fence(__ATOMIC_ACQUIRE);
#else
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
#endif
}

}  // namespace
}  // namespace fccl::host
