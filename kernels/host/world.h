// What a host kernel knows of its communicator: the layout of the symmetric memory, the peers' mappings, the sequence
// numbers of this rank, and how to wait. Built once by lib/, used by one thread at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fccl.h"

namespace fccl::host {

constexpr int kMaxRanks = 256;
// Slots per ring. A sender that is at most L chunks ahead of what it has received needs 2L + 2 slots; L is 1.
constexpr uint32_t kRingSlots = 4;
constexpr int kLookAhead = 1;
// A slot's start is moved by this much against a power of two, or all slots of all ranks fall into the same cache sets.
constexpr size_t kSlotPad = 4096 + 128;

// Each ring of chunks has its own sequence of chunk numbers, wrapping at 2^32.
enum Channel : int { kReduce = 0, kGather = 1, kChannels = 2 };

// A flag has one writer and a pair of cache lines of its own (the second because of the adjacent-line prefetcher).
struct alignas(128) Flag {
  std::atomic<uint32_t> value{0};
};

// The call that a rank is in, as FCCL_CHECK compares it. All integers, no padding, so that it can be compared bytewise.
struct CallSignature {
  uint64_t kind = 0;    // lib's number of the entry point
  uint64_t detail = 0;  // pattern or op, dtype, strategy, which pointers are set, window or not
  int64_t rows = 0;
  int64_t cols = 0;
  uint64_t inputPlace = 0;  // where the input stands in a window: (window number + 1) << 48 | offset; 0: in none
  uint64_t outputPlace = 0;
  bool operator==(const CallSignature&) const = default;
};

// First thing in each rank's symmetric memory. Written by its owner only but for one word, read by all.
struct Control {
  Flag sent[kChannels];  // chunk number + 1 of the last chunk staged by the owner
  Flag barrier;          // number of barriers that the owner has entered
  Flag ended;            // EndReason, 0 while the owner takes part
  Flag calls;            // collectives that the owner has begun: for error texts
  Flag ping;
  Flag pinged;                // rank 0's: what came of it, in picoseconds
  Flag tuning;                // rank 0's, written by all: see lib/autotune.cc
  Flag signatureSequence[2];  // FCCL_CHECK: call number + 1 whose signature stands beside, by parity of the call
  CallSignature signature[2];
};
// The low byte of `ended`. kGaveUp: a collective of the owner failed, the communicator is of no more use; above it
// stand the FailureKind (8 bits) and the rank at fault (16 bits), so that whoever waits for the owner can say why.
// kLeft: the owner has given its communicator back, its calls being done; only on devices where calls are enqueued,
// since there the others' may still run.
enum EndReason : uint32_t { kRunning = 0, kAborted = 1, kGaveUp = 2, kLeft = 3 };

// Where things stand in a rank's symmetric memory, equal on all ranks:
//   Control | staging[kChannels][kRingSlots] | lamport[kChannels][source rank][kRingSlots]
struct MemoryLayout {
  size_t slotBytes = 0;         // payload of a staging slot, a multiple of 4096
  size_t lamportSlotBytes = 0;  // payload of a Lamport slot, a multiple of 4096
  int ranks = 0;

  size_t stagingOffset(int channel, uint32_t slot) const;
  size_t lamportOffset(int channel, int source, uint32_t slot) const;
  size_t totalBytes() const;
};
MemoryLayout makeLayout(int ranks, size_t slotBytes);
// Of a rank's symmetric memory up to the first slot.
size_t controlBytes();

struct WaitPolicy {
  int pauses = 50;                             // before the first sched_yield; 0 where ranks outnumber cores
  std::chrono::milliseconds timeout{300'000};  // 0: none
};

// kCutShort: a launch failed in the middle of a call that runs in several.
enum class FailureKind : uint8_t { kNone, kAbortedHere, kPeerAborted, kPeerDied, kTimeout, kPeerLeft, kCutShort };
struct Failure {
  FailureKind kind = FailureKind::kNone;
  int rank = -1;  // of the peer
};

// Knobs that only tests set.
struct TestHooks {
  void (*step)(void* context, const char* protocolStep) = nullptr;  // called at each step of a protocol: delays
  void* context = nullptr;
  bool forceWire = false;  // take `wire` instead of the planned one
  int wire = 0;
};

struct World {
  int rank = 0;
  int ranks = 1;
  MemoryLayout layout;
  std::vector<char*> memory;  // peer r's symmetric memory as mapped here
  WaitPolicy wait;
  // Asks the kernel whether the process of a rank lives; called rarely.
  bool (*alive)(const void* context, int rank) = nullptr;
  const void* aliveContext = nullptr;
  const TestHooks* hooks = nullptr;

  // Chunks sent so far, per ring; equal on all ranks between calls.
  uint32_t stagedSequence[kChannels] = {};
  uint32_t lamportSequence[kChannels] = {};
  uint32_t barrierSequence = 0;
  uint32_t callSequence = 0;
  uint32_t pingSequence = 0;
  std::vector<char> rowScratch;  // a row between its two passes, and room to align it; grown by lib/ with a plan

  // Set by the kernel that could not finish; the communicator is then of no more use.
  Failure failure;

  __attribute__((always_inline)) Control& control(int r) const {
    return *reinterpret_cast<Control*>(memory[static_cast<size_t>(r)]);
  }
};

// Presets all sequence numbers. Before the memory is used by any peer: the caller passes a barrier afterwards.
void prepareControl(World& world, uint32_t firstSequence);
// The same, and arms the Lamport slots of this rank's own memory.
void prepareMemory(World& world, uint32_t firstSequence);

// Returns when all ranks are here, or with world.failure set. Orders everything before it on any rank before everything
// after it on any other.
void barrier(World& world);

// FCCL_CHECK: publishes `mine` for this call and waits for everybody's. True where all are equal; else `*other` is the
// lowest rank that differs and `*theirs` its signature.
bool compareSignatures(World& world, const CallSignature& mine, int* other, CallSignature* theirs);

// One-way time of a flag between this machine's ranks, in nanoseconds, the worst of the pairs (0, r) that are tried;
// the same value on all ranks. 0 with one rank. Collective, between calls; takes less than a millisecond for a pair
// whose ranks are on two cores.
double measureFlagNanoseconds(World& world);

}  // namespace fccl::host
