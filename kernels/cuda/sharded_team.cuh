// The CUDA team of TWOSHOT with a sharded residual: whoever has reduced a row adds its residual and normalizes it, and
// the others get what comes of it: n where they want it (with codes too, which they make from n themselves), else the
// codes.
//
// Wire Lamport, and every bit arrives as it is. What is sent as 16-bit or 32-bit numbers, FP8 codes or block scales
// never is a word of ones: both halves of it would be NaN with a sign, which arithmetic on the GPU does not make, and
// block scales end at 0x7e. So words are sent with all bits but the highest turned over, and the sentinel is the word
// that never comes. A word of eight NVFP4 codes may be any: see CodesWire.
#pragma once

#include "kernels/cuda/team.cuh"

namespace fccl::cuda {

constexpr uint32_t kTurned = ~kSentinel;

// Eight e2m1 codes to a word. The word of eight negative zeros is what would be sent as the sentinel. It goes as zeros,
// and the block's scale, whose highest bit is free, says that its word of zeros is that one. The block has no other: it
// has a scale, and so an element of 3 or more, which is in its other word.
struct CodesWire {
  static constexpr uint32_t kNegativeZeros = 0x88888888u;
  static constexpr uint32_t kFlag = 0x80u;
  static FCCL_TEAM_FN uint32_t sent(uint32_t codes) { return (codes == kNegativeZeros ? 0 : codes) ^ kMask; }
  static FCCL_TEAM_FN uint32_t received(uint32_t word, uint32_t scaleByte) {
    const uint32_t codes = word ^ kMask;
    return codes == 0 && (scaleByte & kFlag) != 0 ? kNegativeZeros : codes;
  }

 private:
  static constexpr uint32_t kMask = kNegativeZeros ^ kSentinel;
};

template <class D, uint32_t formCode>
class ShardedTeam : public RowTeam<D, formCode> {
  using Base = RowTeam<D, formCode>;
  using RowsBase = RowBase<D, formCode>;
  using Base::await, Base::ownMemory, Base::silent_, Base::slotOffset, Base::world_;
  using RowsBase::a_, RowsBase::cols_, RowsBase::quantScale;

 public:
  using Base::form, Base::kElements, Base::kPacks, Base::kGatherChannel;
  using Base::rank, Base::ranks, Base::rowOf, Base::forEachPack;
  using typename Base::From, typename Base::KernelWorld, typename Base::Memory, typename Base::Rounded,
      typename Base::Send;
  static constexpr bool kGathersSums = false;
  static constexpr int kWords = kElements / 4;            // of the FP8 codes of a pack
  static constexpr int kLanes = kNvfp4Block / kElements;  // that share a block
  static constexpr int kLanesOfWord = 8 / kElements;      // that share a word of NVFP4 codes
  static constexpr int kLanesOfScales = 4 * kLanes;       // that share a word of scales

  FCCL_TEAM_FN ShardedTeam(const KernelWorld& world, const RowArgs& a, Memory& memory) : Base(world, a, memory) {}

  FCCL_TEAM_FN ShardedTeam& rowTeam() { return *this; }

  // ---- Sending what has come of a row: to all peers.
  class Wire {
   public:
    static constexpr bool kSends = true;

    FCCL_TEAM_FN Wire(const ShardedTeam& team, int64_t row)
        : team_(team), row_(team.slotOffset(team.rank(), kGatherChannel, static_cast<int>(row))) {}

    FCCL_TEAM_FN void norm(Pack p, Raw n) const {
      if (p.elements == 0) return;
      const Raw turned{{n.words[0] ^ kTurned, n.words[1] ^ kTurned, n.words[2] ^ kTurned, n.words[3] ^ kTurned}};
      toAll(static_cast<uint32_t>(p.index) * 16u, [&](char* at) FCCL_TEAM_LAMBDA { storeSlot(at, turned); });
    }
    FCCL_TEAM_FN void fp8(Pack p, const uint32_t (&codes)[kWords]) const {
      if (p.elements == 0 || sendsNorm()) return;
      Words<kWords> turned;
#pragma unroll
      for (int i = 0; i < kWords; i++) turned.words[i] = codes[i] ^ kTurned;
      toAll(fp8At(p), [&](char* at) FCCL_TEAM_LAMBDA { storeSlotWords(at, turned); });
    }
    // By all threads of a warp.
    FCCL_TEAM_FN void nvfp4(Pack p, uint32_t codes, uint32_t scaleByte) const {
      if (sendsNorm()) return;
      const uint32_t word = wholeWord(codes);
      const uint32_t lane = threadIdx.x % 32;
      const uint32_t flagged = __ballot_sync(0xffffffffu, p.elements > 0 && word == CodesWire::kNegativeZeros);
      if ((flagged >> (lane / kLanes * kLanes) & ((1u << kLanes) - 1)) != 0) scaleByte |= CodesWire::kFlag;
      uint32_t scales = scaleByte << (8 * (blockOf(p) % 4));
      scales |= __shfl_xor_sync(0xffffffffu, scales, kLanes);
      scales |= __shfl_xor_sync(0xffffffffu, scales, 2 * kLanes);
      if (p.elements == 0) return;
      if (lane % kLanesOfWord == 0) {
        toAll(codesAt(p), [&](char* at) FCCL_TEAM_LAMBDA { storeSlotWord(at, CodesWire::sent(word)); });
      }
      if (lane % kLanesOfScales == 0) {
        toAll(team_.scalesAt(p), [&](char* at) FCCL_TEAM_LAMBDA { storeSlotWord(at, scales ^ kTurned); });
      }
    }

   private:
    // The peers make the codes from n.
    FCCL_TEAM_FN bool sendsNorm() const { return team_.a_.normOut != nullptr; }
    template <class Store>
    FCCL_TEAM_FN void toAll(uint32_t inRow, Store&& store) const {
      if (team_.silent_) return;
      // Each rank begins with another peer, so that they do not all write to the same one.
      int peer = team_.rank();
      for (int s = 1; s < team_.ranks(); s++) {
        if (++peer == team_.ranks()) peer = 0;
        store(team_.world_.memory[peer] + (row_ + inRow));
      }
    }

    const ShardedTeam& team_;
    uint32_t row_;
  };

  class Outputs : public RowsBase::Outputs {
   public:
    FCCL_TEAM_FN Outputs(const ShardedTeam& team, int64_t row) : RowsBase::Outputs(team, row), team_(team) {}
    FCCL_TEAM_FN void sum(Pack, Rounded) {}
    FCCL_TEAM_FN void norm(Pack p, Rounded n) {
      RowsBase::Outputs::norm(p, n);
      wire().norm(p, n.raw);
    }
    FCCL_TEAM_FN Outputs& rest() { return *this; }
    FCCL_TEAM_FN Wire wire() const { return Wire(team_, this->row()); }

   private:
    const ShardedTeam& team_;
  };
  FCCL_TEAM_FN Outputs gatherOutputs(const RowArgs&, Send&, const RowChunk& part, int64_t) {
    return {*this, part.row0};
  }

  using Quantizer = typename RowsBase::template Quantizer<Wire>;
  template <class State>
  FCCL_TEAM_FN Quantizer quantizer(const RowArgs& a, State&, Outputs& out) const {
    return Quantizer(a, out.row(), quantScale(a), out.wire());
  }

  // ---- Receiving a row of `owner`
  FCCL_TEAM_FN void copyGathered(const RowArgs& a, From&, int owner, const RowChunk& part, int64_t) {
    const uint32_t slot = slotOffset(owner, kGatherChannel, part.row0);
    if (a.normOut != nullptr) {
      takeNorm(a, slot, owner, part);
    } else if constexpr (form.nvfp4) {
      takeNvfp4(a, ownMemory() + slot, owner, part);
    } else {
      takeFp8(a, ownMemory() + slot, owner, part);
    }
  }

 private:
  static FCCL_TEAM_FN uint32_t blockOf(Pack p) { return static_cast<uint32_t>(p.index) / kLanes; }
  // In a slot: FP8 codes, or NVFP4 codes and behind them the scales, a word for four blocks.
  static FCCL_TEAM_FN uint32_t fp8At(Pack p) { return static_cast<uint32_t>(p.index * kElements); }
  static FCCL_TEAM_FN uint32_t codesAt(Pack p) { return static_cast<uint32_t>(p.index / kLanesOfWord) * 4u; }
  FCCL_TEAM_FN uint32_t scalesAt(Pack p) const {
    return (static_cast<uint32_t>(cols_) / 2 + 15) / 16 * 16 + blockOf(p) / 4 * 4u;
  }
  // Of the codes of this lane and its neighbours.
  static FCCL_TEAM_FN uint32_t wholeWord(uint32_t codes) {
    if constexpr (kLanesOfWord == 1) return codes;
    const uint32_t other = __shfl_xor_sync(0xffffffffu, codes, 1);
    return threadIdx.x % 2 == 0 ? codes | other << 16 : other | codes << 16;
  }

  FCCL_TEAM_FN void takeNorm(const RowArgs& a, uint32_t slot, int owner, const RowChunk& part) {
    Raw got[kPacks];
    this->takePacks(owner, slot, part, got);
    const bool quant = a.quant != QuantKind::kNone;
    typename RowsBase::template Quantizer<> quantizer(a, part.row0, quantScale(a));
    typename RowsBase::Outputs out(*this, part.row0);
    forEachPack(0, cols_, [&](auto k, auto p) FCCL_TEAM_LAMBDA {
      Raw n = got[k.kValue];
#pragma unroll
      for (int i = 0; i < 4; i++) n.words[i] = p.elements > 0 ? n.words[i] ^ kTurned : 0;
      out.norm(p, Rounded{n});
      if (quant) quantizer.put(k, p, Rounded{n});
    });
    if (quant) quantizer.finish();
  }

  FCCL_TEAM_FN void takeFp8(const RowArgs& a, char* slot, int owner, const RowChunk& part) {
    Words<kWords> got[kPacks]{};
    await(
        owner, part,
        [&](int k, Pack p) FCCL_TEAM_LAMBDA {
          got[k] = loadSlotWords<kWords>(slot + fp8At(p));
          return got[k].words[0] != kSentinel && got[k].words[kWords - 1] != kSentinel;
        },
        [&](Pack p) FCCL_TEAM_LAMBDA { rearmSlotWords<kWords>(slot + fp8At(p)); });
    const PackQuantizer<D, false> codes(a, part.row0, 0.0f);
    forEachPack(0, cols_, [&](auto k, auto p) FCCL_TEAM_LAMBDA {
#pragma unroll
      for (int i = 0; i < kWords; i++) got[k.kValue].words[i] ^= kTurned;
      codes.storeFp8(p, got[k.kValue].words);
    });
  }

  FCCL_TEAM_FN void takeNvfp4(const RowArgs& a, char* slot, int owner, const RowChunk& part) {
    const uint32_t lane = threadIdx.x % 32;
    const bool hasWord = lane % kLanesOfWord == 0;
    const bool hasScales = lane % kLanesOfScales == 0;
    uint32_t words[kPacks]{};
    uint32_t scales[kPacks]{};
    await(
        owner, part,
        [&](int k, Pack p) FCCL_TEAM_LAMBDA {
          if (hasWord) words[k] = loadSlotWord(slot + codesAt(p));
          if (hasScales) scales[k] = loadSlotWord(slot + scalesAt(p));
          return words[k] != kSentinel && scales[k] != kSentinel;
        },
        [&](Pack p) FCCL_TEAM_LAMBDA {
          if (hasWord) storeSlotWord(slot + codesAt(p), kSentinel);
          if (hasScales) storeSlotWord(slot + scalesAt(p), kSentinel);
        });
    const PackQuantizer<D, true> codes(a, part.row0, 0.0f);
    forEachPack(0, cols_, [&](auto k, auto p) FCCL_TEAM_LAMBDA {
      const uint32_t word = __shfl_sync(0xffffffffu, words[k.kValue], lane / kLanesOfWord * kLanesOfWord);
      const uint32_t four = __shfl_sync(0xffffffffu, scales[k.kValue], lane / kLanesOfScales * kLanesOfScales);
      const uint32_t byte = (four ^ kTurned) >> (8 * (blockOf(p) % 4)) & 0xffu;
      const uint32_t all = CodesWire::received(word, byte);
      const uint32_t mine = kLanesOfWord == 1 ? all : all >> (lane % 2 * 16) & 0xffffu;
      // Lanes behind the row take part with zeros: what they have loaded is nothing.
      codes.storeNvfp4(p, mine, p.elements > 0 ? byte & ~CodesWire::kFlag : 0);
    });
  }
};

}  // namespace fccl::cuda
