// The host team of LOWPRECISION: what HostTeam is, with slots that hold FP8.
#pragma once

#include "kernels/fp8_wire.h"
#include "kernels/host/team.h"
#include "kernels/low_precision.h"

namespace fccl::host {
namespace {

template <class D, class Isa>
class LowPrecisionTeam : public HostTeam<D, Isa, Wire::kFlags, 0> {
  using Base = HostTeam<D, Isa, Wire::kFlags, 0>;
  using Words = typename Isa::Words;
  using Base::cutter_, Base::world_;
  static constexpr int kLanes = Isa::kLanes;

 public:
  using P = typename Base::P;
  using Values = typename P::Values;
  using Base::rank, Base::ranks;

  LowPrecisionTeam(World& world, const Call& call) : Base(world, call) {}

  // ---- Sending: a block of values is gathered, then encoded.
  class Send {
   public:
    FCCL_TEAM_FN void startRow(const Chunk&, int64_t r) { start(r); }
    FCCL_TEAM_FN void startRowFor(int owner, const Chunk&, int64_t r) { start(owner * team_.cutter_.ownerRows() + r); }
    template <class Pack>
    FCCL_TEAM_FN void put(Pack, Values v) {
      block_[packs_++] = v;  // of a part of a pack the rest is zeros
      if (packs_ == kPacks) encode();
    }
    template <class Pack>
    FCCL_TEAM_FN void putFor(int, Pack p, Values v) {
      put(p, v);
    }
    FCCL_TEAM_FN void endRow() {
      if (packs_ > 0) encode();
    }

   private:
    friend class LowPrecisionTeam;
    static constexpr int kPacks = kFp8Block / kLanes;

    FCCL_TEAM_FN Send(LowPrecisionTeam& team, int channel, int64_t i)
        : team_(team), base_(team.Base::beginSend(channel, i)) {}
    FCCL_TEAM_FN void start(int64_t row) {
      codes_ = reinterpret_cast<uint8_t*>(base_.slot() + row * team_.rowBytes());
      scales_ = codes_ + fp8ScalesAt(team_.cutter_.ownerCols());
    }

    __attribute__((noinline)) void encode() {
      Words most{};
      for (int j = 0; j < packs_; j++) most = larger(most, magnitude(block_[j]));
      uint32_t amax = largestLane(most);
      if (__builtin_expect(amax >= kFp8Infinity, 0)) amax = leaveFinite();
      const uint32_t scale = fp8ScaleBits(amax);
      const float inverse = fp8Inverse(scale);
      for (int j = 0; j < packs_; j++) Isa::storeBytes(codes_ + j * kLanes, e4m3Codes<Isa>(block_[j] * inverse));
      __builtin_memcpy(scales_, &scale, sizeof scale);
      codes_ += kFp8Block;
      scales_ += sizeof scale;
      packs_ = 0;
    }
    // Makes NaN of infinities; the largest magnitude of the rest.
    __attribute__((cold)) uint32_t leaveFinite() {
      Words most{};
      for (int j = 0; j < packs_; j++) {
        const Words m = magnitude(block_[j]);
        const Words finite = (Words)(m < kFp8Infinity);
        most = larger(most, m & finite);
        block_[j] = (Values)((Words)block_[j] | (~finite & 0x7fc00000u));
      }
      return largestLane(most);
    }
    static FCCL_TEAM_FN Words magnitude(Values v) { return (Words)v & 0x7fffffffu; }
    static FCCL_TEAM_FN Words larger(Words a, Words b) {
      const Words take = (Words)(b > a);
      return (take & b) | (~take & a);
    }
    static FCCL_TEAM_FN uint32_t largestLane(Words v) {
      uint32_t lanes[kLanes];
      __builtin_memcpy(lanes, &v, sizeof lanes);
      for (int half = kLanes / 2; half >= 1; half /= 2) {
        for (int j = 0; j < half; j++) lanes[j] = lanes[j + half] > lanes[j] ? lanes[j + half] : lanes[j];
      }
      return lanes[0];
    }

    LowPrecisionTeam& team_;
    typename Base::Send base_;
    uint8_t* codes_ = nullptr;
    uint8_t* scales_ = nullptr;
    int packs_ = 0;
    Values block_[kPacks];
  };

  FCCL_TEAM_FN Send beginSend(int channel, int64_t i) { return Send(*this, channel, i); }
  FCCL_TEAM_FN void endSend(Send& send) { Base::endSend(send.base_); }

  // ---- Receiving
  class From {
   public:
    // Of the part of `owner`.
    FCCL_TEAM_FN void startRow(int, const Chunk& part, int64_t r) {
      row_ = (first_ + r) * team_.rowBytes();
      scales_ = row_ + fp8ScalesAt(team_.cutter_.ownerCols());
      col0_ = part.col0;
    }
    // In rank order, from +0. `own` is this rank's contribution, which has crossed no wire.
    template <class Pack>
    FCCL_TEAM_FN Values sum(Pack p, Values own) const {
      Values total{};
      for (int r = 0; r < team_.ranks(); r++) total += r == team_.rank() ? own : decoded(r, p);
      return total;
    }
    // A sum of an owner; never -0.
    template <class Pack>
    FCCL_TEAM_FN Values take(int owner, Pack p) const {
      return decoded(owner, p) + 0.0f;
    }

   private:
    friend class LowPrecisionTeam;
    FCCL_TEAM_FN explicit From(LowPrecisionTeam& team) : team_(team) {}

    template <class Pack>
    FCCL_TEAM_FN Values decoded(int r, Pack p) const {
      const int64_t col = p.index * kLanes - col0_;
      VectorOf<uint8_t, kLanes> bytes;
      __builtin_memcpy(&bytes, slots_[r] + row_ + col, sizeof bytes);
      float scale;
      __builtin_memcpy(&scale, slots_[r] + scales_ + col / kFp8Block * 4, sizeof scale);
      const Words codes = __builtin_convertvector(bytes, Words);
      const Words magnitude = codes & 0x7fu;
      const Words isNan = (Words)(magnitude == 0x7fu) & 0x7fc00000u;
      // The code's bits moved to an fp32 with exponent bias 7 instead of 127: exact, subnormal codes too.
      const Values value = (Values)(magnitude << 20) * 0x1p120f * scale;
      return (Values)((Words)value | isNan | (codes & 0x80u) << 24);
    }

    LowPrecisionTeam& team_;
    int64_t first_ = 0;   // row of the slot with which this rank's part begins
    int64_t row_ = 0;     // bytes from the start of a slot
    int64_t scales_ = 0;  // the same
    int64_t col0_ = 0;
    const char* slots_[kMaxRanks];
  };
  FCCL_TEAM_FN From open(int channel, int64_t i) {
    this->step("open");
    From from(*this);
    for (int r = 0; r < ranks(); r++) {
      if (r != rank() && !this->arrived(r, channel, i)) return from;
      from.slots_[r] = this->memoryOf(r) + world_.layout.stagingOffset(channel, this->slotNumber(channel, i));
    }
    if (channel == Base::kReduceChannel) from.first_ = rank() * cutter_.ownerRows();
    return from;
  }
  FCCL_TEAM_FN void close(From&) { this->step("close"); }

 private:
  FCCL_TEAM_FN int64_t rowBytes() const { return fp8RowBytes(cutter_.ownerCols()); }
};

template <class D, class Isa, bool norm>
void runLowPrecision(World& world, const Call& call) {
  LowPrecisionTeam<D, Isa> team(world, call);
  lowPrecision<RuntimePattern<norm>>(team, call.rows);
}

template <class Isa>
Kernel findLowPrecisionKernel(fcclDataType_t dtype, bool norm) {
  if (dtype == fcclFloat32) return norm ? runLowPrecision<Fp32, Isa, true> : runLowPrecision<Fp32, Isa, false>;
  if (dtype == fcclBfloat16) return norm ? runLowPrecision<Bf16, Isa, true> : runLowPrecision<Bf16, Isa, false>;
  return norm ? runLowPrecision<Fp16, Isa, true> : runLowPrecision<Fp16, Isa, false>;
}

}  // namespace
}  // namespace fccl::host
