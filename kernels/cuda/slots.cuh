// Lamport slots: words that are their own arrival flags, in memory that peers write.
#pragma once

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/packs.cuh"

namespace fccl::cuda {

// A kernel's copy of CudaWorld, cut after the pointers that it can use.
template <int slots>
struct World {
  int rank;
  int ranks;
  uint64_t epochBytes;
  DeviceState* state;
  HostWords* hostWords;
  uint64_t timeoutNanoseconds;
  char* memory[slots];
};
static_assert(offsetof(World<kMaxRanks>, memory) == offsetof(CudaWorld, memory) &&
              sizeof(World<kMaxRanks>) == sizeof(CudaWorld));

// Relaxed at system scope: each word is its own flag, nothing else hangs on it. PTX promises 16-byte accesses only in
// pieces, so readers look at every word. No "memory" clobber: slots are touched by nothing but these two, which are
// volatile and so keep their order, and what user memory holds does not depend on them.
FCCL_TEAM_FN Raw loadSlot(const char* at) {
  Raw raw;
  asm volatile("ld.relaxed.sys.global.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(raw.words[0]), "=r"(raw.words[1]), "=r"(raw.words[2]), "=r"(raw.words[3])
               : "l"(at));
  return raw;
}
FCCL_TEAM_FN void storeSlot(char* at, Raw raw) {
  asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(raw.words[0]), "r"(raw.words[1]),
               "r"(raw.words[2]), "r"(raw.words[3]));
}

// The same of fewer words.
template <int n>
struct Words {
  uint32_t words[n];
};
template <int n>
FCCL_TEAM_FN Words<n> loadSlotWords(const char* at) {
  static_assert(n <= 2);
  Words<n> w;
  if constexpr (n == 1) {
    asm volatile("ld.relaxed.sys.global.b32 %0, [%1];" : "=r"(w.words[0]) : "l"(at));
  } else {
    asm volatile("ld.relaxed.sys.global.v2.b32 {%0,%1}, [%2];" : "=r"(w.words[0]), "=r"(w.words[n - 1]) : "l"(at));
  }
  return w;
}
template <int n>
FCCL_TEAM_FN void storeSlotWords(char* at, Words<n> w) {
  static_assert(n <= 2);
  if constexpr (n == 1) {
    asm volatile("st.relaxed.sys.global.b32 [%0], %1;" ::"l"(at), "r"(w.words[0]));
  } else {
    asm volatile("st.relaxed.sys.global.v2.b32 [%0], {%1,%2};" ::"l"(at), "r"(w.words[0]), "r"(w.words[n - 1]));
  }
}
FCCL_TEAM_FN uint32_t loadSlotWord(const char* at) { return loadSlotWords<1>(at).words[0]; }
FCCL_TEAM_FN void storeSlotWord(char* at, uint32_t word) { storeSlotWords(at, Words<1>{{word}}); }
template <int n>
FCCL_TEAM_FN void rearmSlotWords(char* at) {
  Words<n> armed;
#pragma unroll
  for (int i = 0; i < n; i++) armed.words[i] = kSentinel;
  storeSlotWords(at, armed);
}

FCCL_TEAM_FN bool holdsSentinel(Raw raw) {
  return raw.words[0] == kSentinel || raw.words[1] == kSentinel || raw.words[2] == kSentinel ||
         raw.words[3] == kSentinel;
}
FCCL_TEAM_FN Raw withoutSentinel(Raw raw) {
#pragma unroll
  for (int i = 0; i < 4; i++) raw.words[i] = raw.words[i] == kSentinel ? 0u : raw.words[i];
  return raw;
}
FCCL_TEAM_FN void rearmSlot(char* at) { storeSlot(at, Raw{{kSentinel, kSentinel, kSentinel, kSentinel}}); }

// Ends waits: on the abort word of the host, on another block that has given up, on the time limit.
template <class World>
class Patience {
 public:
  FCCL_TEAM_FN explicit Patience(const World& world) : world_(world) {}

  // Called after each fruitless poll. True: give up; data that has not come counts as whatever stands there, and the
  // host reports why. `awaited`: a rank whose data has not come.
  template <class Awaited>
  FCCL_TEAM_FN bool ended(Awaited&& awaited) {
    constexpr uint32_t kPollsPerLook = 1024;
    if (++polls_ % kPollsPerLook != 0) [[likely]]
      return false;
    volatile uint32_t* aborted = &world_.state->aborted;
    if (*aborted != 0) return true;
    uint64_t now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    if (begin_ == 0) begin_ = now;
    const bool late = world_.timeoutNanoseconds != 0 && now - begin_ > world_.timeoutNanoseconds;
    // The host's word crosses the bus: one lane of a warp asks.
    const unsigned here = __activemask();
    bool stop = late;
    if (threadIdx.x % 32 == static_cast<unsigned>(__ffs(static_cast<int>(here)) - 1)) {
      stop = stop || *static_cast<volatile uint32_t*>(&world_.hostWords->abort) != 0;
    }
    if (!stop) return false;
    if (late) *static_cast<volatile uint32_t*>(&world_.hostWords->expired) = 1u + static_cast<uint32_t>(awaited());
    *aborted = 1;
    return true;
  }

 private:
  const World& world_;
  uint32_t polls_ = 0;
  uint64_t begin_ = 0;
};

}  // namespace fccl::cuda
