// Waiting for a peer: a check in line, everything else out of line and cold.
#pragma once

#include "kernels/host/world.h"
#include "kernels/team_macros.h"

namespace fccl::host {

// Until `flag` has reached `target`, counted modulo 2^32. False: not within the time limit, or somebody aborted or
// died; world.failure says which. Acquires what the writer released with the flag.
bool awaitFlagSlow(World& world, int peer, const Flag& flag, uint32_t target);

// Until no 32-bit word of [p, p + bytes) is the Lamport sentinel; bytes a multiple of 4.
bool awaitWordsSlow(World& world, int peer, const void* p, size_t bytes);

// What has become of a peer that still took part when its `ended` was last read; kNone: it lives. One that has died of
// another's end is not taken for the cause.
Failure endOf(const World& world, int peer);

FCCL_TEAM_FN bool reached(uint32_t value, uint32_t target) { return static_cast<int32_t>(value - target) >= 0; }

FCCL_TEAM_FN bool awaitFlag(World& world, int peer, const Flag& flag, uint32_t target) {
  // Acquire: pairs with the release of postFlag, so that what the peer wrote before it is seen after this.
  if (__builtin_expect(reached(flag.value.load(std::memory_order_acquire), target), 1)) return true;
  return awaitFlagSlow(world, peer, flag, target);
}

// Release: whoever acquires the flag sees all that this thread wrote before, and knows that all its earlier reads are
// done.
FCCL_TEAM_FN void postFlag(Flag& flag, uint32_t value) { flag.value.store(value, std::memory_order_release); }

}  // namespace fccl::host
