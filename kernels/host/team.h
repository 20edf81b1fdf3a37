// The host team: one CPU thread with vector registers, over one wire. It gives the protocol texts their slots and
// waits; what a pack is stands in packs.h, what all host teams have in team_base.h.
#pragma once

#include "kernels/epilogue.h"
#include "kernels/host/outputs.h"
#include "kernels/host/packs.h"
#include "kernels/host/quantizer.h"
#include "kernels/host/slots.h"
#include "kernels/host/team_base.h"

namespace fccl::host {
namespace {

template <class D, class Isa, Wire wire, int staticRanks, Known known = Known::kNothing>
class HostTeam : public TeamBase, public Packs<D, Isa> {
 public:
  using P = Packs<D, Isa>;
  using Raw = typename P::Raw;
  using Values = typename P::Values;
  static constexpr bool kLamport = wire == Wire::kLamport;
  // A quantized byte may be a sentinel word, so the Lamport wire gathers sums and every rank does the epilogue.
  static constexpr bool kGathersSums = kLamport;
  static constexpr bool kResidualNorm = isResidualNorm(known);
  // Whether staging is written past the caches, and so whether pass 2 has something to fetch.
  static constexpr bool kMayStream = !kLamport && known != Known::kPlain && known != Known::kResidualNorm;

  HostTeam(World& world, const Call& call)
      : TeamBase(world, call, D::kBytes, kLamport ? world.lamportSequence : world.stagedSequence),
        scratch_(alignedScratch(world)) {}

  FCCL_TEAM_FN int ranks() const { return staticRanks != 0 ? staticRanks : world_.ranks; }

  class RowState {
   public:
    FCCL_TEAM_FN explicit RowState(HostTeam& team) : team_(team) {}
    // Between the passes the row stands in residualOut, or where there is none in scratch.
    FCCL_TEAM_FN void begin(int64_t row) {
      squares_ = {};
      const RowArgs& a = team_.call_.rows;
      keeps_ = !kResidualNorm && a.residual == nullptr;
      row_ = keeps_ ? team_.scratch_ : team_.rowOf(a.residualOut, row);
      if (kMayStream && row + 1 < a.rows) team_.ahead_.residual = team_.rowOf(a.residual, row + 1);
    }
    // The own contribution is read again from the input, which is still in the cache.
    template <class K>
    FCCL_TEAM_FN void keepOwn(K, Raw) {}
    template <class K, class Pack>
    FCCL_TEAM_FN Raw own(K, const char* row, Pack p) const {
      return P::load(row, p);
    }
    template <class K, class Pack>
    FCCL_TEAM_FN void keep(K, Pack p, Raw raw) {
      if (!kResidualNorm && keeps_) P::store(team_.scratch_, WholePack{p.index}, raw, false);
    }
    template <class K>
    FCCL_TEAM_FN void addSquares(K, Values v) {
      squares_.chains[K::kValue] += v * v;
    }
    FCCL_TEAM_FN KeptRow<P, kMayStream> rest() const { return {row_, team_.scratch_, team_.ahead_}; }

   private:
    friend class HostTeam;
    HostTeam& team_;
    bool keeps_ = true;
    const char* row_ = nullptr;
    typename P::SumOfSquares squares_{};
  };
  template <class K, class Pack>
  static FCCL_TEAM_FN Raw input(K, const char* row, Pack p) {
    return P::load(row, p);
  }
  template <class K, class Pack>
  static FCCL_TEAM_FN Raw residual(K, const char* row, Pack p) {
    return P::load(row, p);
  }
  static FCCL_TEAM_FN typename P::Rounded add(typename P::Rounded a, Raw b) {
    return P::round(a.widen() + P::widen(b));
  }
  FCCL_TEAM_FN float squares(const RowState& state) const { return state.squares_.total(); }
  FCCL_TEAM_FN NormTeam<P, kResidualNorm> rowTeam() const { return NormTeam<P, kResidualNorm>(call_.rows); }
  static FCCL_TEAM_FN bool endsRow(const RowArgs& a, const Span& span) { return span.col0 + span.cols >= a.cols; }

  // ---- Sending: to the own staging slot (kFlags) or into every peer's slot (kLamport).
  class Send {
   public:
    FCCL_TEAM_FN void startRow(const Chunk& chunk, int64_t r) { start(chunk, r, 0); }
    FCCL_TEAM_FN void startRowFor(int owner, const Chunk& part, int64_t r) {
      start(part, r, kLamport ? 0 : owner * team_.cutter_.ownerBytes());
    }
    template <class Pack>
    FCCL_TEAM_FN void put(Pack p, Raw raw) {
      if constexpr (kLamport) {
        raw = Isa::zeroWordsEqual(raw, kSentinel);
        if constexpr (staticRanks == 2) {
          slotStore(slot_ + offset_ + P::byteOf(p.index), raw);
        } else {
          for (int r = 0; r < team_.ranks(); r++) {
            if (r != team_.rank()) slotStore(peerSlot(r) + offset_ + P::byteOf(p.index), raw);
          }
        }
      } else {
        P::store(slot_ + offset_, WholePack{p.index}, raw, stream_);
      }
    }
    template <class Pack>
    FCCL_TEAM_FN void putFor(int owner, Pack p, Raw raw) {
      if constexpr (kLamport) {
        slotStore(peerSlot(owner) + offset_ + P::byteOf(p.index), Isa::zeroWordsEqual(raw, kSentinel));
      } else {
        put(p, raw);
      }
    }
    FCCL_TEAM_FN char* slot() const { return slot_; }

   private:
    friend class HostTeam;
    FCCL_TEAM_FN explicit Send(HostTeam& team) : team_(team), stream_(team.streamsStaging()) {}
    FCCL_TEAM_FN void start(const Chunk& chunk, int64_t r, int64_t base) {
      offset_ = base + r * team_.cutter_.rowStride() - P::byteOf(chunk.col0 / P::kLanes);
    }
    FCCL_TEAM_FN char* peerSlot(int r) const { return team_.memoryOf(r) + lamportOffset_; }

    HostTeam& team_;
    bool stream_;
    int channel_ = 0;
    int64_t index_ = 0;
    int64_t offset_ = 0;
    char* slot_ = nullptr;      // kFlags: the own one; kLamport with two ranks: at the peer
    size_t lamportOffset_ = 0;  // kLamport: of this rank's slot in any peer's memory
  };

  FCCL_TEAM_FN Send beginSend(int channel, int64_t i) {
    step("beginSend");
    Send send(*this);
    send.channel_ = channel;
    send.index_ = i;
    if constexpr (kLamport) {
      send.lamportOffset_ = world_.layout.lamportOffset(channel, world_.rank, slotNumber(channel, i));
      // The re-arming stores of earlier chunks become visible before these payload stores. Free on x86, where stores
      // are seen in order.
      releaseSlots();
      if constexpr (staticRanks == 2) send.slot_ = send.peerSlot(1 - rank());
    } else {
      send.slot_ = ownMemory() + world_.layout.stagingOffset(channel, slotNumber(channel, i));
    }
    return send;
  }

  FCCL_TEAM_FN void endSend(Send& send) {
    step("endSend");
    sent_[send.channel_]++;
    if constexpr (kLamport) {
      __atomic_signal_fence(__ATOMIC_SEQ_CST);  // the payload stores leave before any later wait
    } else {
      // Non-temporal stores are not ordered by the release of the flag.
      if (send.stream_) Isa::streamFence();
      publish(send.channel_, send.index_);
    }
  }

  // ---- Receiving
  class From {
   public:
    FCCL_TEAM_FN void startRow(const Chunk& chunk, int64_t r) {
      offset_ = base_ + r * team_.cutter_.rowStride() - P::byteOf(chunk.col0 / P::kLanes);
      if (next_ != nullptr) {
        team_.ahead_.peer = r + 1 < chunk.rows ? slots_[1 - team_.rank()] + offset_ + team_.cutter_.rowStride() : next_;
      }
    }
    template <class Pack>
    FCCL_TEAM_FN Raw take(int r, Pack p) {
      char* at = slots_[r] + offset_ + P::byteOf(p.index);
      if constexpr (!kLamport) return slotLoadPlain<Raw>(at);
      Raw raw = slotLoad<Isa, Raw>(at);
      while (__builtin_expect(Isa::anyWordEquals(raw, kSentinel), 0)) {
        if (!awaitWordsSlow(team_.world_, r, at, sizeof raw)) return raw;
        raw = slotLoad<Isa, Raw>(at);
      }
      slotStore(
          at,
          sentinelPack<Raw>());  // re-armed at once: the writer comes back to this slot only after it has heard from us
      return raw;
    }
    // Sum in fp32 in rank order, from +0, rounded. `own` is this rank's contribution.
    template <class K, class Pack>
    FCCL_TEAM_FN typename P::Rounded sum(K, Pack p, Raw own) {
      Values total{};
      if constexpr (staticRanks == 2) {
        const bool first = team_.rank() == 0;
        const Raw theirs = take(first ? 1 : 0, p);
        total += P::widen(first ? own : theirs);
        total += P::widen(first ? theirs : own);
      } else {
        for (int r = 0; r < team_.ranks(); r++) total += P::widen(r == team_.rank() ? own : take(r, p));
      }
      return P::round(total);
    }
    // A row of sums from its owner.
    FCCL_TEAM_FN void startGathered(int owner, const Chunk& part, int64_t r) {
      owner_ = owner;
      startRow(part, r);
    }
    template <class K, class Pack>
    FCCL_TEAM_FN Raw gathered(K, Pack p) {
      return take(owner_, p);
    }
    FCCL_TEAM_FN char* slot(int r) const { return slots_[r]; }

   private:
    friend class HostTeam;
    FCCL_TEAM_FN explicit From(HostTeam& team) : team_(team) {}
    HostTeam& team_;
    int owner_ = 0;
    int64_t base_ = 0;
    int64_t offset_ = 0;
    const char* next_ = nullptr;  // where the peer's next chunk will stand, if it is to be fetched ahead
    char* slots_[staticRanks != 0 ? staticRanks : kMaxRanks];
  };

  FCCL_TEAM_FN From open(int channel, int64_t i) {
    step("open");
    From from(*this);
    const uint32_t slot = slotNumber(channel, i);
    for (int r = 0; r < ranks(); r++) {
      if (r == rank()) {
        from.slots_[r] = nullptr;
      } else if constexpr (kLamport) {
        from.slots_[r] = ownMemory() + world_.layout.lamportOffset(channel, r, slot);
      } else {
        if (!arrived(r, channel, i)) return from;
        from.slots_[r] = memoryOf(r) + world_.layout.stagingOffset(channel, slot);
      }
    }
    if (!kLamport && channel == kReduceChannel && cutter_.shared()) from.base_ = rank() * cutter_.ownerBytes();
    // The peer has most likely staged its next chunk by now; who asks for it before it is there asks in vain.
    if constexpr (kMayStream) {
      ahead_ = {};
      if (streamsStaging() && ranks() == 2 && !cutter_.shared() && i + 1 < cutter_.chunks()) {
        from.next_ = memoryOf(1 - rank()) + world_.layout.stagingOffset(channel, slotNumber(channel, i + 1));
      }
    }
    return from;
  }
  FCCL_TEAM_FN void close(From&) {
    step("close");
    if constexpr (kLamport) acquireSlots();
  }

  // ---- Outputs
  FCCL_TEAM_FN RowOutputs<P, false, known> userOutputs(const RowArgs& a, int64_t row) const {
    return {a, row, call_.shape, GatheredRow{}};
  }
  FCCL_TEAM_FN auto gatherOutputs(const RowArgs& a, Send& out, const Chunk& part, int64_t r) const {
    if constexpr (kGathersSums) {
      out.startRow(part, r);
      return PushedOutputs<P, Send>(a, part.row0 + r, call_.shape, out);
    } else {
      return RowOutputs<P, true, known>(a, part.row0 + r, call_.shape, cutter_.gathered(out.slot(), part, r));
    }
  }
  FCCL_TEAM_FN void copyGathered(const RowArgs& a, From& from, int owner, const Chunk& part, int64_t r) const {
    copyRow(a, part, r, D::kBytes, cutter_.gathered(from.slot(owner), part, r));
  }

  FCCL_TEAM_FN void end(const RowArgs&) {
    if (call_.shape.streamOutput) Isa::streamFence();
    advance();
  }

  // ---- User buffers
  class WindowRow {
   public:
    template <class K, class Pack>
    FCCL_TEAM_FN typename P::Rounded sum(K, Pack p) const {
      Values total{};
      for (int r = 0; r < team_.ranks(); r++) total += P::widen(P::load(row_ + team_.call_.windows.input[r], p));
      return P::round(total);
    }

   private:
    friend class HostTeam;
    FCCL_TEAM_FN WindowRow(const HostTeam& team, const char* row) : team_(team), row_(row) {}
    const HostTeam& team_;
    const char* row_;
  };
  FCCL_TEAM_FN WindowRow windowRow(const Span& span) const {
    return WindowRow(*this, rowOf(call_.rows.input, span.row));
  }
  FCCL_TEAM_FN WindowOutputs<P> windowOutputs(const RowArgs& a) const {
    return WindowOutputs<P>(a, call_.windows.reducedOut, ranks(), call_.shape.streamOutput);
  }

 private:
  FCCL_TEAM_FN bool streamsStaging() const { return known == Known::kNothing ? call_.shape.streamStaging : kMayStream; }

  char* scratch_;  // a row between its passes, from a cache line on
  RowsAhead ahead_;
};

}  // namespace
}  // namespace fccl::host
