#include "kernels/host/world.h"

#include <algorithm>
#include <cstring>

#include "kernels/host/sentinel.h"
#include "kernels/host/wait.h"

namespace fccl::host {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLamportBytesPerSource = size_t{512} << 10;  // for all sources together; see makeLayout

size_t roundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace

size_t controlBytes() { return roundUp(sizeof(Control), kPage); }

size_t MemoryLayout::stagingOffset(int channel, uint32_t slot) const {
  return controlBytes() + (static_cast<size_t>(channel) * kRingSlots + slot) * (slotBytes + kSlotPad);
}

size_t MemoryLayout::lamportOffset(int channel, int source, uint32_t slot) const {
  const size_t staging = roundUp(size_t{kChannels} * kRingSlots * (slotBytes + kSlotPad), kPage);
  const size_t index =
      (static_cast<size_t>(channel) * static_cast<size_t>(ranks) + static_cast<size_t>(source)) * kRingSlots + slot;
  return controlBytes() + staging + index * (lamportSlotBytes + kSlotPad);
}

size_t MemoryLayout::totalBytes() const { return roundUp(lamportOffset(kChannels, 0, 0), kPage); }

MemoryLayout makeLayout(int ranks, size_t slotBytes) {
  MemoryLayout layout;
  layout.ranks = ranks;
  layout.slotBytes = roundUp(std::max(slotBytes, kPage), kPage);
  // Lamport is for small messages, and its memory grows with the square of the ranks: 64 KiB a slot up to 8 ranks, then
  // less, so that a rank's share stays the same.
  const size_t perSource = kLamportBytesPerSource / static_cast<size_t>(ranks) / kPage * kPage;
  layout.lamportSlotBytes = std::clamp(perSource, kPage, std::min(layout.slotBytes, size_t{64} << 10));
  return layout;
}

void prepareControl(World& world, uint32_t firstSequence) {
  char* own = world.memory[static_cast<size_t>(world.rank)];
  Control& control = *new (own) Control;
  for (int channel = 0; channel < kChannels; channel++) {
    world.stagedSequence[channel] = firstSequence;
    world.lamportSequence[channel] = firstSequence;
    // Relaxed: peers read after the caller's barrier, which orders everything here before.
    control.sent[channel].value.store(firstSequence, std::memory_order_relaxed);
  }
  world.barrierSequence = firstSequence;
  control.barrier.value.store(firstSequence, std::memory_order_relaxed);
  world.callSequence = firstSequence;
  control.calls.value.store(firstSequence, std::memory_order_relaxed);
  for (Flag& flag : control.signatureSequence) flag.value.store(firstSequence, std::memory_order_relaxed);
}

void prepareMemory(World& world, uint32_t firstSequence) {
  prepareControl(world, firstSequence);
  char* own = world.memory[static_cast<size_t>(world.rank)];
  const size_t armedBegin = world.layout.lamportOffset(0, 0, 0);
  auto* words = reinterpret_cast<uint32_t*>(own + armedBegin);
  std::fill(words, words + (world.layout.totalBytes() - armedBegin) / 4, kSentinel);
}

void barrier(World& world) {
  const uint32_t mine = ++world.barrierSequence;
  // The release of postFlag orders this rank's earlier writes and reads before the flag; the acquire of awaitFlag
  // orders later ones after it.
  postFlag(world.control(world.rank).barrier, mine);
  for (int r = 0; r < world.ranks; r++) {
    if (r != world.rank && !awaitFlag(world, r, world.control(r).barrier, mine)) return;
  }
}

bool compareSignatures(World& world, const CallSignature& mine, int* other, CallSignature* theirs) {
  const uint32_t call = world.callSequence;
  Control& own = world.control(world.rank);
  // Two places in turn: a rank is at most one call ahead of a rank that still reads, since it waits here for all.
  own.signature[call % 2] = mine;
  postFlag(own.signatureSequence[call % 2], call + 1);
  *other = -1;
  for (int r = 0; r < world.ranks; r++) {
    if (r == world.rank) continue;
    const Control& peer = world.control(r);
    if (!awaitFlag(world, r, peer.signatureSequence[call % 2], call + 1)) return true;
    if (*other < 0 && !(peer.signature[call % 2] == mine)) {
      *other = r;
      *theirs = peer.signature[call % 2];
    }
  }
  return *other < 0;
}

double measureFlagNanoseconds(World& world) {
  using Clock = std::chrono::steady_clock;
  constexpr uint32_t kWarmUp = 50;
  constexpr uint32_t kRoundTrips = 200;
  constexpr int kPairs = 8;
  double worst = 0;
  Control& own = world.control(world.rank);
  for (int r = 1; r < std::min(world.ranks, kPairs); r++) {
    if (world.rank == 0) {
      const uint32_t base = static_cast<uint32_t>(r) * 1000;
      Clock::time_point begin;
      for (uint32_t i = 1; i <= kWarmUp + kRoundTrips; i++) {
        if (i == kWarmUp + 1) begin = Clock::now();
        postFlag(own.ping, base + i);
        if (!awaitFlag(world, r, world.control(r).ping, base + i)) return 0;
      }
      const std::chrono::duration<double, std::nano> took = Clock::now() - begin;
      worst = std::max(worst, took.count() / (2.0 * kRoundTrips));
    } else if (world.rank == r) {
      const uint32_t base = static_cast<uint32_t>(r) * 1000;
      for (uint32_t i = 1; i <= kWarmUp + kRoundTrips; i++) {
        if (!awaitFlag(world, 0, world.control(0).ping, base + i)) return 0;
        postFlag(own.ping, base + i);
      }
    }
  }
  // Rank 0 hands the result out: its ping flag ends at a number that all know, and the value stands in its signature.
  if (world.rank == 0) own.signature[0].rows = static_cast<int64_t>(worst * 1000);
  barrier(world);
  const double result = static_cast<double>(world.control(0).signature[0].rows) / 1000;
  barrier(world);
  return world.failure.kind == FailureKind::kNone ? result : 0;
}

}  // namespace fccl::host
