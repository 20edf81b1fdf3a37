// What all host teams have: chunks, sequence numbers, barriers, the steps that tests listen to.
#pragma once

#include "kernels/host/cutter.h"
#include "kernels/host/wait.h"
#include "kernels/team_macros.h"

namespace fccl::host {

// Padding bytes of a swizzled scale buffer are zero: columns beyond K in each row, rows beyond the last.
void zeroScalePadding(const RowArgs& a);

namespace {

// From a cache line on: registers as long as one are stored there.
FCCL_TEAM_FN char* alignedScratch(World& world) {
  constexpr uintptr_t kLine = 64;
  const auto at = reinterpret_cast<uintptr_t>(world.rowScratch.data());
  return world.rowScratch.data() + (kLine - at % kLine) % kLine;
}

// `sequence` is the sequence of the wire that the team uses.
class TeamBase {
 public:
  static constexpr int kLookAhead = host::kLookAhead;
  static constexpr int kReduceChannel = kReduce;
  static constexpr int kGatherChannel = kGather;

  TeamBase(World& world, const Call& call, size_t elementBytes, uint32_t* sequence)
      : world_(world),
        rank_(world.rank),
        call_(call),
        cutter_(world, call, elementBytes),
        elementBytes_(static_cast<int64_t>(elementBytes)),
        sequence_(sequence) {}

  FCCL_TEAM_FN int rank() const { return rank_; }
  FCCL_TEAM_FN bool failed() const { return world_.failure.kind != FailureKind::kNone; }

  FCCL_TEAM_FN int64_t chunks(const RowArgs&) const { return cutter_.chunks(); }
  FCCL_TEAM_FN Chunk chunk(const RowArgs&, int64_t i) const { return cutter_.chunk(i); }
  FCCL_TEAM_FN int64_t sharedChunks(const RowArgs&) { return cutter_.sharedChunks(); }
  FCCL_TEAM_FN Chunk part(const RowArgs&, int64_t i, int owner) const { return cutter_.part(i, owner); }

  FCCL_TEAM_FN const char* rowOf(const void* base, int64_t row) const {
    return base == nullptr ? nullptr : static_cast<const char*>(base) + row * call_.rows.cols * elementBytes_;
  }

  FCCL_TEAM_FN void begin(const RowArgs& a) {
    step("begin");
    if (a.quant == QuantKind::kNvfp4) zeroScalePadding(a);
  }

  FCCL_TEAM_FN void barrier() {
    step("barrier");
    host::barrier(world_);
  }

 protected:
  FCCL_TEAM_FN uint32_t number(int channel, int64_t i) const { return sequence_[channel] + static_cast<uint32_t>(i); }
  FCCL_TEAM_FN uint32_t slotNumber(int channel, int64_t i) const { return number(channel, i) % kRingSlots; }
  FCCL_TEAM_FN char* ownMemory() const { return world_.memory[static_cast<size_t>(world_.rank)]; }
  FCCL_TEAM_FN char* memoryOf(int r) const { return world_.memory[static_cast<size_t>(r)]; }

  // Wire kFlags: chunk i of `channel` is staged and may be read by the peers.
  FCCL_TEAM_FN void publish(int channel, int64_t i) {
    postFlag(world_.control(world_.rank).sent[channel], number(channel, i) + 1);
  }
  // Wire kFlags: acquire of r's flag: r's staged chunk is complete, and r has read what it had to read of older chunks.
  FCCL_TEAM_FN bool arrived(int r, int channel, int64_t i) {
    return awaitFlag(world_, r, world_.control(r).sent[channel], number(channel, i) + 1);
  }
  // The call is over: its chunks are counted.
  FCCL_TEAM_FN void advance() {
    for (int channel = 0; channel < kChannels; channel++) sequence_[channel] += sent_[channel];
    step("end");
  }

  FCCL_TEAM_FN void step(const char* name) const {
    if (__builtin_expect(world_.hooks != nullptr, 0) && world_.hooks->step != nullptr) {
      world_.hooks->step(world_.hooks->context, name);
    }
  }

  World& world_;
  const int rank_;
  const Call& call_;
  Cutter cutter_;
  int64_t elementBytes_;
  uint32_t* sequence_;
  uint32_t sent_[kChannels] = {};
};

}  // namespace
}  // namespace fccl::host
