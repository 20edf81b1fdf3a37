// The CUDA team of LOWPRECISION: TWOSHOT's, with slots that hold FP8. Wire Lamport: the codes and the scale of a block
// are words that are their own arrival flags. A scale is never the sentinel; a word of codes that is (three zeros and a
// negative zero) becomes four zeros.
//
// A block of 128 values lies in the registers of neighbouring lanes of a warp. They find its amax together, each stores
// its own codes, the first one the scale, which all of them read: it is armed again when all have.
#pragma once

#include "kernels/cuda/team.cuh"
#include "kernels/fp8_wire.h"

namespace fccl::cuda {

// Values of two e4m3 codes, exact.
FCCL_TEAM_FN float2 floatsFromE4m3(uint32_t pair) {
  if constexpr (kHasFp8Conversion) {
    const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
    return __half22float2(__half2(halves));
  } else {
    return make_float2(floatFromE4m3(static_cast<uint8_t>(pair)), floatFromE4m3(static_cast<uint8_t>(pair >> 8)));
  }
}

template <class D, uint32_t formCode>
class LowPrecisionTeam : public RowTeam<D, formCode> {
  using Base = RowTeam<D, formCode>;
  using Base::form, Base::kElements;
  using Base::world_, Base::epochOffset_, Base::silent_;
  using RowBase<D, formCode>::rows_, RowBase<D, formCode>::cols_;

 public:
  using Base::rank, Base::ranks;
  using typename Base::KernelWorld, typename Base::Memory, typename Base::Values;
  static constexpr int kWords = kElements / 4;
  static constexpr int kLanes = kFp8Block / kElements;  // that share a block

  FCCL_TEAM_FN LowPrecisionTeam(const KernelWorld& world, const RowArgs& a, Memory& memory) : Base(world, a, memory) {
    const int cols = form.norm ? cols_ : this->ownRows();
    scalesAt_ = static_cast<uint32_t>(fp8ScalesAt(cols));
    rowBytes_ = static_cast<uint32_t>(fp8RowBytes(cols));
  }

  // ---- Sending: to an owner, or to all, this rank too.
  class Send {
   public:
    FCCL_TEAM_FN void startRowFor(int owner, const RowChunk& part, int64_t) {
      row_ = team_.slotOf(channel_, team_.rank(), owner, part.row0);
      firstPack_ = team_.firstPackOf(owner);
    }
    FCCL_TEAM_FN void startRow(const RowChunk& part, int64_t) { startRowFor(team_.rank(), part, 0); }
    FCCL_TEAM_FN void putFor(int owner, Pack p, Values v) const {
      const Coded coded = encode(v);
      if (p.elements == 0 || team_.silent_) return;
      store(owner, p.index - firstPack_, coded);
    }
    FCCL_TEAM_FN void put(Pack p, Values v) const {
      const Coded coded = encode(v);
      if (p.elements == 0 || team_.silent_) return;
      // Each rank begins with another peer, so that they do not all write to the same one.
      int to = team_.rank();
      for (int s = 0; s < team_.ranks(); s++) {
        if (++to == team_.ranks()) to = 0;
        store(to, p.index - firstPack_, coded);
      }
    }
    FCCL_TEAM_FN void endRow() const {}

   private:
    friend class LowPrecisionTeam;
    struct Coded {
      Words<kWords> codes;
      uint32_t scale;
    };

    FCCL_TEAM_FN Send(LowPrecisionTeam& team, int channel) : team_(team), channel_(channel) {}

    // By all lanes of a warp, those without a pack with zeros.
    static FCCL_TEAM_FN Coded encode(Values v) {
      uint32_t most = 0;
#pragma unroll
      for (int i = 0; i < kElements; i++) most = max(most, __float_as_uint(v.v[i]) & 0x7fffffffu);
      most = ofBlock(most);
      if (__any_sync(0xffffffffu, most >= kFp8Infinity)) [[unlikely]] {
        most = 0;
#pragma unroll
        for (int i = 0; i < kElements; i++) {
          const uint32_t bits = __float_as_uint(v.v[i]);
          const bool finite = (bits & 0x7fffffffu) < kFp8Infinity;
          if (finite) most = max(most, bits & 0x7fffffffu);
          if (!finite) v.v[i] = __uint_as_float(bits | 0x7fc00000u);
        }
        most = ofBlock(most);
      }
      Coded coded;
      coded.scale = fp8ScaleBits(most);
      const float inverse = fp8Inverse(coded.scale);
#pragma unroll
      for (int i = 0; i < kWords; i++) {
        const float* four = v.v + 4 * i;
        const uint32_t low = e4m3Pair(__fmul_rn(four[0], inverse), __fmul_rn(four[1], inverse));
        const uint32_t word = low | e4m3Pair(__fmul_rn(four[2], inverse), __fmul_rn(four[3], inverse)) << 16;
        coded.codes.words[i] = word == kSentinel ? 0 : word;
      }
      return coded;
    }
    static FCCL_TEAM_FN uint32_t ofBlock(uint32_t most) {
#pragma unroll
      for (int step = 1; step < kLanes; step *= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
      return most;
    }
    FCCL_TEAM_FN void store(int to, int pack, const Coded& coded) const {
      char* row = team_.world_.memory[to] + row_;
      storeSlotWords(row + team_.codesOf(pack), coded.codes);
      if (pack % kLanes == 0) storeSlotWord(row + team_.scaleOf(pack), coded.scale);
    }

    LowPrecisionTeam& team_;
    int channel_;
    uint32_t row_ = 0;
    int firstPack_ = 0;
  };
  FCCL_TEAM_FN Send beginSend(int channel, int) { return Send(*this, channel); }
  FCCL_TEAM_FN void endSend(Send&) {}

  // ---- Receiving
  class From {
   public:
    // Of the part of `owner`.
    FCCL_TEAM_FN void startRow(int owner, const RowChunk& part, int64_t) {
      owner_ = owner;
      row0_ = part.row0;
      firstPack_ = team_.firstPackOf(owner);
    }
    // In rank order, from +0. `own` is this rank's contribution, which has crossed no wire.
    FCCL_TEAM_FN Values sum(Pack p, Values own) {
      Values total{};
      for (int r = 0; r < team_.ranks(); r++) total = total + (r == team_.rank() ? own : decoded(r, p));
      return total;
    }
    // A sum of an owner; never -0.
    FCCL_TEAM_FN Values take(int owner, Pack p) { return decoded(owner, p) + Values{}; }

   private:
    friend class LowPrecisionTeam;
    FCCL_TEAM_FN From(LowPrecisionTeam& team, int channel) : team_(team), channel_(channel) {}

    // By all lanes of a warp.
    FCCL_TEAM_FN Values decoded(int source, Pack p) {
      const int pack = p.index - firstPack_;
      char* row = team_.ownMemory() + team_.slotOf(channel_, source, owner_, row0_);
      char* codesAt = row + team_.codesOf(pack);
      char* scaleAt = row + team_.scaleOf(pack);
      Words<kWords> codes{};
      uint32_t scale = 0;
      if (p.elements > 0) {
        Patience<KernelWorld> patience(team_.world_);
        codes = loadSlotWords<kWords>(codesAt);
        scale = loadSlotWord(scaleAt);
        // Silent once it has given up: a sum that lacks a rank must not pass for one.
        while (missing(codes, scale) && !team_.silent_) {
          team_.silent_ = patience.ended([&]() FCCL_TEAM_LAMBDA { return source; });
          codes = loadSlotWords<kWords>(codesAt);
          scale = loadSlotWord(scaleAt);
        }
        rearmSlotWords<kWords>(codesAt);
      }
      __syncwarp();  // all lanes of the block have the scale; those that waited longer are back
      if (p.elements > 0 && pack % kLanes == 0) storeSlotWord(scaleAt, kSentinel);
      Values v;
#pragma unroll
      for (int i = 0; i < kElements; i += 2) {
        const float2 two = floatsFromE4m3(codes.words[i / 4] >> (i % 4 * 8) & 0xffffu);
        v.v[i] = __fmul_rn(two.x, __uint_as_float(scale));
        v.v[i + 1] = __fmul_rn(two.y, __uint_as_float(scale));
      }
      return v;
    }
    static FCCL_TEAM_FN bool missing(Words<kWords> codes, uint32_t scale) {
      return codes.words[0] == kSentinel || codes.words[kWords - 1] == kSentinel || scale == kSentinel;
    }

    LowPrecisionTeam& team_;
    int channel_;
    int owner_ = 0;
    int row0_ = 0;
    int firstPack_ = 0;
  };
  FCCL_TEAM_FN From open(int channel, int) {
    if (!this->arrived_) this->leaveEpoch();
    return From(*this, channel);
  }
  FCCL_TEAM_FN void close(From&) {}

 private:
  // Of any rank's memory: [source][row of the owner], then the sums: [row]; without norm [source], [owner].
  FCCL_TEAM_FN uint32_t slotOf(int channel, int source, int owner, int row) const {
    const int each = form.norm ? this->ownRows() : 1;
    int index = channel == Base::kReduceChannel ? source * each : each * ranks();
    if constexpr (form.norm) {
      index += channel == Base::kReduceChannel ? row - this->firstRowOf(owner) : row;
    } else {
      index += channel == Base::kReduceChannel ? 0 : owner;
    }
    return epochOffset_ + static_cast<uint32_t>(index) * rowBytes_;
  }
  // Packs are counted from where a slot's row begins: without norm, an owner's share.
  FCCL_TEAM_FN int firstPackOf(int owner) const { return form.norm ? 0 : owner * (this->ownRows() / kElements); }
  static FCCL_TEAM_FN uint32_t codesOf(int pack) { return static_cast<uint32_t>(pack * kElements); }
  FCCL_TEAM_FN uint32_t scaleOf(int pack) const { return scalesAt_ + static_cast<uint32_t>(pack / kLanes) * 4u; }

  uint32_t scalesAt_;
  uint32_t rowBytes_;  // in a slot
};

}  // namespace fccl::cuda
