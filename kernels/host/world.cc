#include "kernels/host/world.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <span>

#include "kernels/host/sentinel.h"
#include "kernels/host/wait.h"

namespace fccl::host {
namespace {

constexpr size_t kPage = 4096;
constexpr int kPingPairs = 8;
constexpr uint32_t kPingsPerPair = 1 << 17;                   // more than there are in the time that is taken for them
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

// Rank 0's side of one pair; 0 where the wait ended early.
static double pingPeer(World& world, int peer, uint32_t base) {
  using Clock = std::chrono::steady_clock;
  using Nanoseconds = std::chrono::duration<double, std::nano>;
  constexpr size_t kBatches = 15;
  constexpr int kRoundTrips = 25;
  // Ranks that have just begun may stand on one core until the scheduler has moved one away: a flag takes two switches
  // of the core then, some microseconds. That is not how it stays, so measure again, for a while.
  constexpr double kOneCore = 1000;
  constexpr auto kPatience = std::chrono::milliseconds(50);
  Flag& ping = world.control(world.rank).ping;
  const Flag& echo = world.control(peer).ping;
  uint32_t trips = base;
  std::array<double, kBatches> batches{};
  size_t count = 0;
  double median = 0;
  const Clock::time_point begin = Clock::now();
  do {
    if (count == kBatches) count = 0;
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kRoundTrips; i++) {
      postFlag(ping, ++trips);
      if (!awaitFlag(world, peer, echo, trips)) return 0;
    }
    batches[count++] = Nanoseconds(Clock::now() - start).count() / (2.0 * kRoundTrips);
    std::ranges::sort(std::span(batches).first(count));
    median = batches[count / 2];
  } while ((count < kBatches || median > kOneCore) && Clock::now() - begin < kPatience);
  postFlag(ping, base + kPingsPerPair);
  return median;
}

// The other side.
static void echoPings(World& world, uint32_t base) {
  const Flag& ping = world.control(0).ping;
  for (uint32_t trip = base + 1;; trip++) {
    if (!awaitFlag(world, 0, ping, trip)) return;
    // Relaxed: awaitFlag() has acquired it. Rank 0 waits for the echo of each, so it is this one, or the end of this
    // pair or of a later one.
    if (reached(ping.value.load(std::memory_order_relaxed), base + kPingsPerPair)) return;
    postFlag(world.control(world.rank).ping, trip);
  }
}

double measureFlagNanoseconds(World& world) {
  double worst = 0;
  for (int r = 1; r < std::min(world.ranks, kPingPairs); r++) {
    const uint32_t base = world.pingSequence + static_cast<uint32_t>(r) * kPingsPerPair;
    if (world.rank == 0) {
      worst = std::max(worst, pingPeer(world, r, base));
    } else if (world.rank == r) {
      echoPings(world, base);
    }
  }
  world.pingSequence += kPingPairs * kPingsPerPair;
  // Relaxed: the first barrier orders the store before the loads, the second one these before the next measurement.
  Flag& result = world.control(0).pinged;
  if (world.rank == 0)
    result.value.store(static_cast<uint32_t>(std::min(worst * 1000, 4e9)), std::memory_order_relaxed);
  barrier(world);
  const double picoseconds = result.value.load(std::memory_order_relaxed);
  barrier(world);
  return world.failure.kind == FailureKind::kNone ? picoseconds / 1000 : 0;
}

}  // namespace fccl::host
