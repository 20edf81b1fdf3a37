// The CUDA team: a block of threads, or a cluster of blocks, that takes a row at a time; each thread keeps its packs of
// the row in registers. Wire Lamport.
//
// Order of a ONESHOT block                                       why here
//   wait for the kernels before (programmatic launch)            nothing of theirs may be touched earlier
//   load x, epoch, residual, weight                              one trip to memory
//   push x to the peers
//   count this block as arrived, zero the padding of scales      in the shadow of the wait for the peers
//   poll all peers, let the next kernel begin, re-arm            next: its blocks cannot starve a peer's that we waited
//   for sum, residual, row sum, norm, quantize
//
// Why three epochs are enough. Call e writes epoch e % 3 of the peers and re-arms what it has read of its own. A peer
// writes that epoch again in call e + 3, after it has received our data of call e + 2, which this rank sends after its
// kernel of call e has ended, its re-arming stores with it (stream order, waitForPrevious()). A kernel that pushes the
// input of a call (fccl_device.h) sends in that call's place, between the kernels of the calls before and after.
#pragma once

#include "kernels/cuda/epoch.cuh"
#include "kernels/cuda/row_parts.cuh"
#include "kernels/cuda/scale_padding.cuh"

namespace fccl::cuda {

template <class D, uint32_t formCode>
class RowTeam : public RowParts<D, formCode> {
  using Base = RowParts<D, formCode>;
  using Base::a_, Base::rows_, Base::cols_, Base::part_, Base::team_, Base::teams_, Base::firstPack_;
  using Base::chunks_, Base::loadConstants, Base::kReuse, Base::kStaged, Base::stage_;

 protected:
  using Base::epochOffset_, Base::slotOffset, Base::slotStride, Base::world_;

 public:
  using Base::add, Base::forEachPack, Base::rowOf, Base::round;
  using Base::chunk, Base::chunks, Base::rank, Base::ranks, Base::sharedChunks;
  using Base::form, Base::kElements, Base::kBytes, Base::kPacks, Base::kEdge;
  using Base::kGatherChannel, Base::kReduceChannel, Base::kTwoshot;
  using typename Base::KernelWorld, typename Base::Memory, typename Base::Rounded, typename Base::Values;
  static constexpr int kLookAhead = form.lookAhead ? 1 : 0;
  static constexpr bool kGathersSums = true;
  // All words that a thread waits for are asked for at once where registers allow it, else one pack of the row at a
  // time.
  static constexpr bool kPollsRow = !kTwoshot && form.sources > 0 && form.sources* kPacks <= 8;
  // TWOSHOT: all packs of a source at once, the residual meanwhile.
  static constexpr bool kTakesAll = form.protocol == Protocol::kTwoshot;
  // With several peers the own contribution is read again, by rank like theirs: cheaper than to select among registers.
  static constexpr bool kRereadsOwn = form.sources > 1 && kEdge == Edge::kWhole;
  static constexpr int kPolled = form.sources == 0 ? 1 : kRereadsOwn ? form.sources + 1 : form.sources;

  FCCL_TEAM_FN RowTeam(const KernelWorld& world, const RowArgs& a, Memory& memory) : Base(world, a, memory) {}

  // A wait that gives up lets its thread go on with what is there; all threads reach the end, and the host reads why.
  static constexpr FCCL_TEAM_FN bool failed() { return false; }

  FCCL_TEAM_FN void begin(const RowArgs& a) {
    this->sum_.begin();
    // In registers before the wait: the first touch of each line of arguments takes its time.
    if constexpr (form.once) {
      if constexpr (form.norm) touch(a.residual, a.weight, a.quantScale, a.normOut);
      touch(a.input, a.reducedOut, world_.state, ownMemory());
      if constexpr (form.sources == 1) touch(peerMemory());
    }
    waitForPrevious();
    epoch_ = readEpoch(world_.state);
    // After a wait of an earlier call was given up nothing is sent: a peer may still be at that call, and would take
    // what comes into its slots for that call's.
    silent_ = *static_cast<volatile uint32_t*>(&world_.state->aborted) != 0;
    epochOffset_ = epoch_ * static_cast<uint32_t>(world_.epochBytes);
    chunks_ = kTwoshot ? sharedChunks(a) : chunks(a);
    if constexpr (form.norm) {
      this->prepareMean();
      if (kTwoshot) loadConstants();
    }
    if constexpr (kStaged) {
      if (chunks_ > 0) fetchInput(0);
      stage_.close();
    }
  }
  FCCL_TEAM_FN void end(const RowArgs&) {
    if (arrived_) return;  // there was a row
    leaveEpoch();
    this->sum_.endWithout();
  }

  template <class K>
  FCCL_TEAM_FN Raw input(K k, const char* row, Pack p) const {
    if constexpr (kStaged) return stage_.input(sent_, k.kValue);
    return kTwoshot ? loadUser<D, kEdge>(row, p) : next_[k.kValue];
  }
  template <class K>
  FCCL_TEAM_FN Raw residual(K k, const char* row, Pack p) const {
    if constexpr (kStaged) return stage_.residual(opened_, k.kValue);
    return kTwoshot && !kTakesAll ? loadUser<D, kEdge>(row, p) : residual_[k.kValue];
  }
  class RowState : public Base::RowState {
   public:
    FCCL_TEAM_FN explicit RowState(RowTeam& team) : Base::RowState(team), team_(team) {}
    template <class K>
    FCCL_TEAM_FN void keepOwn(K, Raw) {}  // the team has loaded it
    template <class K>
    FCCL_TEAM_FN Raw own(K k, const char*, Pack) const {
      if constexpr (kStaged) return team_.stage_.input(team_.opened_, k.kValue);
      return team_.own_[k.kValue];
    }

   private:
    RowTeam& team_;
  };
  FCCL_TEAM_FN float squares(RowState& state) {
    if constexpr (!kPollsRow) letNextBeginAfterLast();
    return Base::squares(state);
  }
  FCCL_TEAM_FN RowTeam& rowTeam() { return *this; }

  // ---- Sending: into every peer's slot, or into an owner's.
  class Send {
   public:
    FCCL_TEAM_FN void startRow(const RowChunk& chunk, int64_t) {
      offset_ = team_.slotOffset(team_.rank(), channel_, chunk.row0);
    }
    FCCL_TEAM_FN void startRowFor(int owner, const RowChunk& part, int64_t) {
      offset_ = team_.slotOffset(team_.rank(), channel_, part.row0, owner);
    }
    FCCL_TEAM_FN void put(Pack p, Raw raw) {
      if (p.elements == 0 || team_.silent_ || (!kTwoshot && team_.a_.inputPushed)) return;
      raw = withoutSentinel(raw);
      const uint32_t offset = offset_ + static_cast<uint32_t>(p.index) * 16u;
      if constexpr (form.sources == 1) {
        storeSlot(team_.peerMemory() + offset, raw);
      } else if constexpr (form.sources > 1) {
        // Each rank begins with another peer, so that they do not all write to the same one.
#pragma unroll
        for (int s = 1; s <= form.sources; s++) {
          int peer = team_.rank() + s;
          if (peer >= team_.ranks()) peer -= team_.ranks();
          if (s < team_.ranks()) storeSlot(team_.world_.memory[peer] + offset, raw);
        }
      } else {
        for (int s = 1; s < team_.ranks(); s++) {
          int peer = team_.rank() + s;
          if (peer >= team_.ranks()) peer -= team_.ranks();
          storeSlot(team_.world_.memory[peer] + offset, raw);
        }
      }
    }
    FCCL_TEAM_FN void putFor(int owner, Pack p, Raw raw) {
      if (p.elements == 0 || team_.silent_) return;
      storeSlot(team_.world_.memory[owner] + (offset_ + static_cast<uint32_t>(p.index) * 16u), withoutSentinel(raw));
    }

   private:
    friend class RowTeam;
    FCCL_TEAM_FN Send(RowTeam& team, int channel) : team_(team), channel_(channel) {}
    RowTeam& team_;
    int channel_;
    uint32_t offset_ = 0;
  };
  FCCL_TEAM_FN Send beginSend(int channel, int i) {
    if constexpr (!kTwoshot) {
      const RowChunk c = chunk(a_, i);
      if constexpr (kStaged) {
        // Row i + 1 and the residual of row i come while row i - 1 is computed.
        sent_ = i;
        if (i + 1 < chunks_) fetchInput(i + 1);
        fetchResidual(i);
        stage_.close();
        stage_.template wait<1>();
      } else {
        if constexpr (form.lookAhead) rotate();
        const char* row = rowOf(a_.input, c.row0);
        forEachPack(c.col0, c.cols,
                    [&](auto k, auto p) FCCL_TEAM_LAMBDA { next_[k.kValue] = loadUser<D, kEdge, kReuse>(row, p); });
        if constexpr (!form.lookAhead) {
          rotate();
          loadResidual(c);
        }
      }
      if (form.norm && i == 0) loadConstants();
    }
    return Send(*this, channel);
  }
  FCCL_TEAM_FN void endSend(Send&) {}

  // ---- Receiving
  class From {
   public:
    FCCL_TEAM_FN void startRow(const RowChunk& chunk, int64_t) {
      chunk_ = chunk;
      if constexpr (kTakesAll) sumRow();
    }
    template <class K>
    FCCL_TEAM_FN Rounded sum(K k, Pack p, Raw own) {
      if constexpr (kTakesAll) return Rounded{row_[k.kValue]};
      Values total{};
      if constexpr (form.sources == 1) {
        // Of two, rank order is any order; + 0 last makes -0 to +0 as a sum from +0 does.
        Raw fresh[1]{};
        if constexpr (!kPollsRow) team_.template poll<1>(chunk_, p, &fresh);
        return add(add(Rounded{own}, kPollsRow ? got_[k.kValue][0] : fresh[0]), Raw{});
      } else if constexpr (form.sources == 0) {
        for (int r = 0; r < team_.ranks(); r++) total = total + D::widen(r == team_.rank() ? own : take(r, p));
      } else {
        Raw fresh[kPolled]{};
        if constexpr (!kPollsRow) team_.template poll<1>(chunk_, p, &fresh);
        const Raw* got = kPollsRow ? got_[k.kValue] : fresh;
        // In rank order. Where the own contribution is not among them, source s is rank s before this rank, s + 1
        // after.
#pragma unroll
        for (int r = 0; r <= form.sources; r++) {
          if (r >= team_.ranks()) continue;
          if constexpr (kRereadsOwn) {
            total = total + D::widen(got[r]);
          } else {
            Raw raw = own;
            if (r > 0 && r > team_.rank()) raw = got[r > 0 ? r - 1 : 0];
            if (r < form.sources && r < team_.rank()) raw = got[r < form.sources ? r : 0];
            total = total + D::widen(raw);
          }
        }
      }
      return round(total);
    }
    // TWOSHOT: a row, or a share of one, of sums from its owner.
    FCCL_TEAM_FN void startGathered(int owner, const RowChunk& part, int64_t) {
      chunk_ = part;
      team_.loadResidual(part);
      takeRow(owner, row_);
    }
    template <class K>
    FCCL_TEAM_FN Raw gathered(K k, Pack) const {
      return row_[k.kValue];
    }
    FCCL_TEAM_FN Raw take(int r, Pack p) {
      if (p.elements == 0) return Raw{};
      char* at =
          team_.ownMemory() + (team_.slotOffset(r, channel_, chunk_.row0) + static_cast<uint32_t>(p.index) * 16u);
      Patience<KernelWorld> patience(team_.world_);
      Raw raw = loadSlot(at);
      // Silent too once it has given up: TWOSHOT sends sums, and one that lacks a rank must not pass for one.
      while (holdsSentinel(raw) && !team_.silent_) {
        team_.silent_ = patience.ended([&]() FCCL_TEAM_LAMBDA { return r; });
        raw = loadSlot(at);
      }
      rearmSlot(at);
      return raw;
    }

   private:
    friend class RowTeam;
    FCCL_TEAM_FN From(RowTeam& team, int channel) : team_(team), channel_(channel) {}

    FCCL_TEAM_FN void takeRow(int source, Raw (&got)[kPacks]) {
      team_.takePacks(source, team_.slotOffset(source, channel_, chunk_.row0), chunk_, got);
    }
    // In rank order from +0; the own contribution in its turn, since registers are dear here (NVFP4 -4 to -9 %).
    FCCL_TEAM_FN void sumRow() {
      team_.loadResidual(chunk_);
      const char* row = team_.rowOf(team_.a_.input, chunk_.row0);
      Values total[kPacks]{};
      for (int r = 0; r < team_.ranks(); r++) {
        Raw got[kPacks];
        if (r != team_.rank()) {
          takeRow(r, got);
        } else {
          team_.forEachPack(chunk_.col0, chunk_.cols,
                            [&](auto k, auto p) FCCL_TEAM_LAMBDA { got[k.kValue] = loadUser<D, kEdge>(row, p); });
        }
#pragma unroll
        for (int k = 0; k < kPacks; k++) total[k] = total[k] + D::widen(got[k]);
      }
#pragma unroll
      for (int k = 0; k < kPacks; k++) row_[k] = D::narrow(total[k]);
    }

    RowTeam& team_;
    int channel_;
    RowChunk chunk_{};
    Raw row_[kTakesAll ? kPacks : 1];
    Raw got_[kPollsRow ? kPacks : 1][kPolled];
  };
  FCCL_TEAM_FN From open(int channel, int i) {
    From from(*this, channel);
    if (form.once || !arrived_) leaveEpoch();
    if constexpr (!kTwoshot) {
      const RowChunk c = chunk(a_, i);
      opened_ = i;
      if constexpr (kStaged) {
        if (i + 1 == chunks_) stage_.template wait<0>();
      } else if constexpr (form.lookAhead) {
        if (i + 1 == chunks_) rotate();  // nothing was sent this turn
        loadResidual(c);
      }
      if constexpr (kPollsRow) {
        const Pack first{c.col0 / kElements + firstPack_, 0};
        poll<kPacks>(c, first, from.got_);
        letNextBeginAfterLast();
      }
    }
    return from;
  }
  FCCL_TEAM_FN void close(From&) {
    if constexpr (!kPollsRow && !form.norm && !kTwoshot) letNextBeginAfterLast();
  }

  // ---- Outputs
  class Outputs : public Base::Outputs {
   public:
    FCCL_TEAM_FN void sum(Pack p, Rounded s) {
      Base::Outputs::sum(p, s);
      if (pushed_ != nullptr) pushed_->put(p, s.raw);
    }

   private:
    friend class RowTeam;
    FCCL_TEAM_FN Outputs(const RowTeam& team, int64_t row, Send* pushed) : Base::Outputs(team, row), pushed_(pushed) {}
    Send* pushed_;
  };
  FCCL_TEAM_FN Outputs userOutputs(const RowArgs&, int64_t row) { return {*this, row, nullptr}; }
  FCCL_TEAM_FN Outputs gatherOutputs(const RowArgs&, Send& out, const RowChunk& part, int64_t) {
    out.startRow(part, 0);
    return {*this, part.row0, &out};
  }

 protected:
  FCCL_TEAM_FN void leaveEpoch() {
    arrived_ = true;
    if constexpr (form.nvfp4) zeroPadding();
    if constexpr (kPacks > 1)
      __syncthreads();  // measured: with several packs per thread the poll begins better together
    if (kPacks > 1 ? threadIdx.x < 32 : arriveAtBlockBarrier()) moveEpochOn(world_.state, epoch_);
  }
  FCCL_TEAM_FN char* ownMemory() const { return world_.memory[world_.rank]; }

  // `slot`: as slotOffset() gives it, which is an offset only together with a pack's: 32 bits wrap around.
  FCCL_TEAM_FN void takePacks(int source, uint32_t slot, const RowChunk& c, Raw (&got)[kPacks]) {
#pragma unroll
    for (int k = 0; k < kPacks; k++) got[k] = Raw{};  // what lies behind the row counts as zero
    await(
        source, c,
        [&](int k, Pack p) FCCL_TEAM_LAMBDA {
          got[k] = loadSlot(ownMemory() + (slot + static_cast<uint32_t>(p.index) * 16u));
          return !holdsSentinel(got[k]);
        },
        [&](Pack p) FCCL_TEAM_LAMBDA { rearmSlot(ownMemory() + (slot + static_cast<uint32_t>(p.index) * 16u)); });
  }
  // A row, or a share of one, from `source`. load(k, p): of pack k what is there; whether that is all. rearm(p) when
  // all is.
  template <class Load, class Rearm>
  FCCL_TEAM_FN void await(int source, const RowChunk& c, Load&& load, Rearm&& rearm) {
    Patience<KernelWorld> patience(world_);
    for (;;) {
      bool missing = false;
      forEachPack(c.col0, c.cols, [&](auto k, auto p) FCCL_TEAM_LAMBDA {
        if (p.elements > 0) missing = !load(k.kValue, p) || missing;
      });
      // Silent too once it has given up: TWOSHOT sends sums, and one that lacks a rank must not pass for one.
      if (!missing || silent_) break;
      silent_ = patience.ended([&]() FCCL_TEAM_LAMBDA { return source; });
    }
    forEachPack(c.col0, c.cols, [&](auto, auto p) FCCL_TEAM_LAMBDA {
      if (p.elements > 0) rearm(p);
    });
    __syncwarp();  // lanes that waited longer are back before any shuffle
  }

  bool arrived_ = false;
  bool silent_ = false;

 private:
  FCCL_TEAM_FN void rotate() {
#pragma unroll
    for (int k = 0; k < kPacks; k++) own_[k] = next_[k];
  }
  FCCL_TEAM_FN void fetchInput(int i) const {
    const RowChunk c = chunk(a_, i);
    const char* row = rowOf(a_.input, c.row0);
    forEachPack(c.col0, c.cols, [&](auto k, auto p) FCCL_TEAM_LAMBDA {
      stage_.fetchInput(i, k.kValue, row + static_cast<uint32_t>(p.index) * 16u, p.elements > 0);
    });
  }
  FCCL_TEAM_FN void fetchResidual(int i) const {
    if (a_.residual == nullptr) return;
    const RowChunk c = chunk(a_, i);
    const char* row = rowOf(a_.residual, c.row0);
    forEachPack(c.col0, c.cols, [&](auto k, auto p) FCCL_TEAM_LAMBDA {
      stage_.fetchResidual(i, k.kValue, row + static_cast<uint32_t>(p.index) * 16u, p.elements > 0);
    });
  }
  FCCL_TEAM_FN void loadResidual(const RowChunk& c) {
    if constexpr (form.norm) {
      if (a_.residual == nullptr) return;
      const char* row = rowOf(a_.residual, c.row0);
      forEachPack(c.col0, c.cols,
                  [&](auto k, auto p) FCCL_TEAM_LAMBDA { residual_[k.kValue] = loadUser<D, kEdge, kReuse>(row, p); });
    }
  }

  FCCL_TEAM_FN void letNextBeginAfterLast() const {
    if (!kTwoshot && opened_ + 1 == chunks_) letNextBegin();
  }

  FCCL_TEAM_FN char* peerMemory() const { return world_.memory[1 - world_.rank]; }  // of two ranks
  template <class... Pointers>
  static FCCL_TEAM_FN void touch(const Pointers*... p) {
    (void(([&] { asm volatile("" ::"l"(p)); })()), ...);
  }

  // Packs first.index, first.index + blockDim.x, ... of every source, all asked for at once, until no word is the
  // sentinel; then re-armed.
  template <int packs>
  FCCL_TEAM_FN void poll(const RowChunk& c, Pack first, Raw (*got)[kPolled]) {
    const uint32_t sourceStride = static_cast<uint32_t>(rows_) * slotStride();
    const uint32_t inRow = static_cast<uint32_t>(first.index) * 16u;
    char* slots = ownMemory() + (slotOffset(0, kReduceChannel, c.row0) + inRow);
    const char* own = kRereadsOwn ? rowOf(a_.input, c.row0) + inRow : nullptr;
    const int packEnd = (c.col0 + c.cols + kElements - 1) / kElements;
    const auto inside = [&](int k, int i) FCCL_TEAM_LAMBDA {
      return (form.sources == 1 || i + (kRereadsOwn ? 0 : 1) < world_.ranks) &&
             first.index + k * static_cast<int>(blockDim.x) < packEnd;
    };
    const auto rankOf = [&](int i) FCCL_TEAM_LAMBDA {
      return kRereadsOwn ? i : form.sources == 1 ? 1 - world_.rank : i < world_.rank ? i : i + 1;
    };
    const auto isOwn = [&](int i) FCCL_TEAM_LAMBDA { return kRereadsOwn && i == world_.rank; };
    const auto at = [&](int k, int i) FCCL_TEAM_LAMBDA {
      return slots + (static_cast<uint32_t>(rankOf(i)) * sourceStride + static_cast<uint32_t>(k) * blockDim.x * 16u);
    };
    Patience<KernelWorld> patience(world_);
    for (;;) {
#pragma unroll
      for (int k = 0; k < packs; k++) {
#pragma unroll
        for (int i = 0; i < kPolled; i++) {
          got[k][i] = Raw{};
          const char* from = isOwn(i) ? own + static_cast<uint32_t>(k) * blockDim.x * 16u : at(k, i);
          if (inside(k, i)) got[k][i] = loadSlot(from);
        }
      }
      int missing = -1;
#pragma unroll
      for (int k = 0; k < packs; k++) {
#pragma unroll
        for (int i = 0; i < kPolled; i++) missing = holdsSentinel(got[k][i]) && !isOwn(i) ? i : missing;
      }
      // Goes on sending after it has given up: this call's inputs are right, and registers are dear here.
      if (missing < 0 || patience.ended([&]() FCCL_TEAM_LAMBDA { return rankOf(missing); })) break;
    }
#pragma unroll
    for (int k = 0; k < packs; k++) {
#pragma unroll
      for (int i = 0; i < kPolled; i++) {
        if (inside(k, i) && !isOwn(i)) rearmSlot(at(k, i));
      }
    }
    __syncwarp();  // lanes that waited longer are back before any shuffle
  }

  // By the blocks that have no row, where the planner has added some; else by all.
  FCCL_TEAM_FN void zeroPadding() const {
    uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t threads = gridDim.x * blockDim.x;
    if (form.once && teams_ > rows_) {
      if (team_ < rows_) return;
      const uint32_t ofRows = threads / static_cast<uint32_t>(teams_) * static_cast<uint32_t>(rows_);
      thread -= ofRows;
      threads -= ofRows;
    }
    zeroScalePadding(a_, static_cast<uint32_t>(rows_), static_cast<uint32_t>(cols_), thread, threads);
  }

  uint32_t epoch_ = 0;
  int sent_ = 0;      // the row that is being sent
  int opened_ = 0;    // the row that is waited for
  Raw next_[kPacks];  // loaded and sent
  Raw own_[kPacks];   // of the row that is waited for
  Raw residual_[kPacks];
};

}  // namespace fccl::cuda
