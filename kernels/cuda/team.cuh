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
// kernel of call e has ended, its re-arming stores with it (stream order, waitForPrevious()).
#pragma once

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/forms.h"
#include "kernels/cuda/quantizer.cuh"
#include "kernels/cuda/slots.cuh"
#include "kernels/epilogue.h"

namespace fccl::cuda {

template <int value>
struct Index {
  static constexpr int kValue = value;
};

// A launch stays below 2^31 columns and rows, and its slots below 2^32 bytes: see plan.cc.
struct RowChunk {
  int row0;
  int rows;
  int col0;
  int cols;
};

// Shared memory of a block.
template <int groups>
struct BlockMemory {
  float partials[2][groups];  // of the squares of 32 packs; two, for a row and the next
  alignas(8) uint64_t barrier[2];
};

template <class D, uint32_t formCode>
class RowTeam {
 public:
  static constexpr Form form = Form::of(formCode);
  static constexpr int kLookAhead = form.lookAhead ? 1 : 0;
  static constexpr int kReduceChannel = 0;
  static constexpr int kGatherChannel = 1;
  static constexpr bool kGathersSums = true;
  static constexpr bool kTwoshot = form.protocol == Protocol::kTwoshot;
  static constexpr int kElements = D::kElements;
  static constexpr int kBytes = 16 / kElements;
  static constexpr int kPacks = form.packs;
  static constexpr Edge kEdge = !form.aligned ? Edge::kAny : form.norm ? Edge::kWhole : Edge::kTail;
  // All words that a thread waits for are asked for at once where registers allow it, else one pack of the row at a
  // time.
  static constexpr bool kPollsRow = !kTwoshot && form.sources > 0 && form.sources* kPacks <= 8;
  // With several peers the own contribution is read again, by rank like theirs: cheaper than to select among registers.
  static constexpr bool kRereadsOwn = form.sources > 1 && kEdge == Edge::kWhole;
  static constexpr int kPolled = form.sources == 0 ? 1 : kRereadsOwn ? form.sources + 1 : form.sources;
  // With more packs the registers are needed otherwise, and the caches have the weights.
  static constexpr bool kKeepsWeight = form.norm && (form.once || kPacks == 1);
  // Two roundings in one instruction, or in fp32: the same bits. Measured: with several packs per thread fp32 adds let
  // the ranks' polls and stores fall apart better, NVFP4 is bound by instructions.
  static constexpr bool kPackedAdd = kPacks == 1 || form.nvfp4;
  static constexpr int kSlots = form.sources == 0 ? kMaxRanks : form.sources + 1;
  // Partial sums of a row: as many as its packs, 32 together. 64 Ki elements of 16 bits.
  static constexpr int kGroups = form.cluster ? 256 : 32 * kPacks;
  using KernelWorld = World<kSlots>;
  using Memory = BlockMemory<kGroups>;
  using Values = Floats<kElements>;
  struct Rounded {
    Raw raw;
    FCCL_TEAM_FN Values widen() const { return D::widen(raw); }
    FCCL_TEAM_FN Raw narrow() const { return raw; }
  };

  FCCL_TEAM_FN RowTeam(const KernelWorld& world, const RowArgs& a, Memory& memory)
      : world_(world),
        a_(a),
        memory_(memory),
        rows_(static_cast<int>(a.rows)),
        cols_(static_cast<int>(a.cols)),
        rowBytes_(static_cast<uint32_t>(a.cols) * kBytes) {
    if constexpr (form.cluster) {
      part_ = static_cast<int>(clusterRank());
      team_ = static_cast<int>(clusterNumber());
      teams_ = static_cast<int>(clusters());
    } else {
      team_ = static_cast<int>(blockIdx.x);
      teams_ = static_cast<int>(gridDim.x);
    }
    firstPack_ = part_ * kPacks * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  }

  FCCL_TEAM_FN int rank() const { return world_.rank; }
  FCCL_TEAM_FN int ranks() const { return world_.ranks; }
  // A wait that gives up lets its thread go on with what is there; all threads reach the end, and the host reads why.
  static constexpr FCCL_TEAM_FN bool failed() { return false; }

  FCCL_TEAM_FN void begin(const RowArgs& a) {
    if constexpr (form.cluster) {
      if (threadIdx.x == 0) {
        initBarrier(&memory_.barrier[0]);
        initBarrier(&memory_.barrier[1]);
        expectBytes(&memory_.barrier[0], rowSumBytes());
        if (!form.once) expectBytes(&memory_.barrier[1], rowSumBytes());
      }
      clusterArrive();
    }
    // In registers before the wait: the first touch of each line of arguments takes its time.
    if constexpr (form.once) {
      if constexpr (form.norm) touch(a.residual, a.weight, a.quantScale, a.normOut);
      touch(a.input, a.reducedOut, world_.state, ownMemory());
      if constexpr (form.sources == 1) touch(peerMemory());
    }
    waitForPrevious();
    epoch_ = *static_cast<volatile uint32_t*>(&world_.state->epochs[countsArrivals() ? 0 : blockIdx.x]);
    // Once a wait has been given up, nothing is sent any more: a sum that lacks a rank must not pass for one.
    silent_ = *static_cast<volatile uint32_t*>(&world_.state->aborted) != 0;
    epochOffset_ = epoch_ * static_cast<uint32_t>(world_.epochBytes);
    chunks_ = kTwoshot ? sharedChunks(a) : chunks(a);
    if constexpr (form.norm) {
      colsReciprocal_ = reciprocal(static_cast<float>(cols_));
      if (kTwoshot) loadConstants();
    }
  }
  FCCL_TEAM_FN void end(const RowArgs&) {
    if (arrived_) return;  // there was a row
    leaveEpoch();
    if constexpr (form.cluster) {
      clusterWait();
    }
  }

  // ---- What is this team's
  FCCL_TEAM_FN int chunks(const RowArgs&) const {
    return form.norm ? strided(rows_) : strided((cols_ + chunkCols() - 1) / chunkCols());
  }
  FCCL_TEAM_FN RowChunk chunk(const RowArgs&, int i) const {
    const int number = team_ + i * teams_;
    if constexpr (form.norm) return {number, 1, 0, cols_};
    const int col0 = number * chunkCols();
    return {0, 1, col0, min(chunkCols(), cols_ - col0)};
  }
  FCCL_TEAM_FN int sharedChunks(const RowArgs&) const {
    const int each = ownRows();
    return form.norm ? strided(each) : strided((each + chunkCols() - 1) / chunkCols());
  }
  // With norm an owner has rows, without it has packs of the one row.
  FCCL_TEAM_FN RowChunk part(const RowArgs&, int i, int owner) const {
    const int number = team_ + i * teams_;
    if constexpr (form.norm) {
      const int each = rows_ / world_.ranks;
      const int extra = rows_ % world_.ranks;
      const int begin = owner * each + min(owner, extra);
      return {begin + number, number < each + (owner < extra ? 1 : 0) ? 1 : 0, 0, cols_};
    } else {
      const int begin = owner * ownRows() + number * chunkCols();
      const int end = min(min((owner + 1) * ownRows(), begin + chunkCols()), cols_);
      return {0, begin < end ? 1 : 0, begin, end - begin};
    }
  }

  FCCL_TEAM_FN char* rowOf(const void* base, int64_t row) const {
    return static_cast<char*>(const_cast<void*>(base)) + static_cast<uint64_t>(static_cast<uint32_t>(row)) * rowBytes_;
  }
  static FCCL_TEAM_FN Values widen(Raw raw) { return D::widen(raw); }
  static FCCL_TEAM_FN Rounded round(Values v) { return {D::narrow(v)}; }
  static FCCL_TEAM_FN Rounded add(Rounded a, Raw b) {
    if constexpr (kPackedAdd) return {D::add(a.raw, b)};
    return round(a.widen() + D::widen(b));
  }
  // The mean is correctly rounded where it is normal, and the sum's infinity or NaN goes through.
  FCCL_TEAM_FN float inverseRms(float squares, const RowArgs& a) const {
    const bool finite = squares < __uint_as_float(0x7f800000u);
    const float mean = finite ? divideNormal(squares, static_cast<float>(cols_), colsReciprocal_) : squares;
    return __frsqrt_rn(__fadd_rn(mean, a.eps));
  }
  // Where there is a norm a chunk is a row.
  static FCCL_TEAM_FN bool endsRow(const RowArgs&, const Span&) { return true; }

  // All threads come, with an empty pack where the row has none for them, so that warps stay together.
  template <class F>
  FCCL_TEAM_FN void forEachPack(int64_t col0, int64_t cols, F&& f) const {
    each<0>(static_cast<int>(col0) / kElements + firstPack_, static_cast<int>(col0 + cols), f);
  }

  template <class K>
  FCCL_TEAM_FN Raw input(K k, const char* row, Pack p) const {
    return kTwoshot ? loadUser<D, kEdge>(row, p) : next_[k.kValue];
  }
  template <class K>
  FCCL_TEAM_FN Raw residual(K k, const char* row, Pack p) const {
    return kTwoshot ? loadUser<D, kEdge>(row, p) : residual_[k.kValue];
  }
  template <class K>
  FCCL_TEAM_FN Values weight(const RowArgs& a, K k, Pack p) const {
    Values w;
    if (!a.weightIsFp32) [[likely]] {
      w = D::widen(kKeepsWeight ? weight_[k.kValue] : loadUser<D, kEdge>(static_cast<const char*>(a.weight), p));
    } else {
#pragma unroll
      for (int i = 0; i < kElements; i++) {
        w.v[i] = i < p.elements ? static_cast<const float*>(a.weight)[p.index * kElements + i] : 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < kElements; i++) w.v[i] = __fadd_rn(w.v[i], a.weightBias);
    return w;
  }

  // The row between its passes, in registers. Squares are kept per pack: their order must not depend on the shape.
  class RowState {
   public:
    FCCL_TEAM_FN explicit RowState(RowTeam& team) : team_(team) {}
    FCCL_TEAM_FN void begin(int64_t) {}
    template <class K>
    FCCL_TEAM_FN void keepOwn(K, Raw) {}  // the team has loaded it
    template <class K>
    FCCL_TEAM_FN Raw own(K k, const char*, Pack) const {
      return team_.own_[k.kValue];
    }
    template <class K>
    FCCL_TEAM_FN void keep(K k, Pack, Raw raw) {
      kept_[k.kValue] = raw;
    }
    template <class K>
    FCCL_TEAM_FN Raw kept(K k, Pack) const {
      return kept_[k.kValue];
    }
    template <class K>
    FCCL_TEAM_FN void addSquares(K k, Values v) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kElements; i++) sum = __fmaf_rn(v.v[i], v.v[i], sum);
      squares_[k.kValue] = sum;
    }
    FCCL_TEAM_FN RowState& rest() { return *this; }

   private:
    friend class RowTeam;
    RowTeam& team_;
    Raw kept_[kPacks];
    float squares_[kPacks];
  };

  // Order: the elements of a pack, a lane tree over 32 packs, then the groups of 32 packs: lane l adds groups l, l +
  // 32,
  // ..., and a tree adds the lanes. A function of the row length only.
  FCCL_TEAM_FN float squares(RowState& state) {
    if constexpr (!kPollsRow) letNextBeginAfterLast();
    const auto warps = static_cast<int>(blockDim.x / 32);
    const auto lane = static_cast<int>(threadIdx.x % 32);
    const auto warp = static_cast<int>(threadIdx.x / 32);
    float* partials = memory_.partials[sums_ & 1];
    uint64_t* barrier = &memory_.barrier[sums_ & 1];
    if constexpr (form.cluster) {
      if (sums_ == 0) clusterWait();  // the other blocks' barriers are there
    }
#pragma unroll
    for (int k = 0; k < kPacks; k++) {
      const float sum = warpSum(state.squares_[k]);
      float* at = &partials[(part_ * kPacks + k) * warps + warp];
      if constexpr (form.cluster) {
        if (lane < static_cast<int>(clusterBlocks())) sendPartial(at, sum, barrier, static_cast<uint32_t>(lane));
      } else if (lane == 0) {
        *at = sum;
      }
    }
    if constexpr (form.cluster) {
      awaitPhase(barrier, static_cast<uint32_t>(sums_ >> 1 & 1));
      // For the row after the next. Partials of that come only after every block of the cluster has had the next row's
      // from all warps here, which by then have read this row's.
      if (threadIdx.x == 0 && sums_ + 2 < chunks_) expectBytes(barrier, rowSumBytes());
    } else {
      __syncthreads();
    }
    sums_++;
    const int groups = kPacks * warps * (form.cluster ? static_cast<int>(clusterBlocks()) : 1);
    float total = lane < groups ? partials[lane] : 0.0f;
    if constexpr (kGroups > 32) {
#pragma unroll 1
      for (int g = lane + 32; g < groups; g += 32) total = __fadd_rn(total, partials[g]);
    }
    return warpSum(total);
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
      if (p.elements == 0 || team_.silent_) return;
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
      if constexpr (form.lookAhead) rotate();
      const char* row = rowOf(a_.input, c.row0);
      forEachPack(c.col0, c.cols,
                  [&](auto k, auto p) FCCL_TEAM_LAMBDA { next_[k.kValue] = loadUser<D, kEdge>(row, p); });
      if constexpr (!form.lookAhead) {
        rotate();
        loadResidual(c);
      }
      if (form.norm && i == 0) loadConstants();
    }
    return Send(*this, channel);
  }
  FCCL_TEAM_FN void endSend(Send&) {}

  // ---- Receiving
  class From {
   public:
    FCCL_TEAM_FN void startRow(const RowChunk& chunk, int64_t) { chunk_ = chunk; }
    template <class K>
    FCCL_TEAM_FN Rounded sum(K k, Pack p, Raw own) {
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
    FCCL_TEAM_FN Raw take(int r, Pack p) {
      if (p.elements == 0) return Raw{};
      char* at =
          team_.ownMemory() + (team_.slotOffset(r, channel_, chunk_.row0) + static_cast<uint32_t>(p.index) * 16u);
      Patience<KernelWorld> patience(team_.world_);
      Raw raw = loadSlot(at);
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
    RowTeam& team_;
    int channel_;
    RowChunk chunk_{};
    Raw got_[kPollsRow ? kPacks : 1][kPolled];
  };
  FCCL_TEAM_FN From open(int channel, int i) {
    From from(*this, channel);
    if (form.once || !arrived_) leaveEpoch();
    if constexpr (!kTwoshot) {
      const RowChunk c = chunk(a_, i);
      opened_ = i;
      if constexpr (form.lookAhead) {
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
  class Outputs {
   public:
    FCCL_TEAM_FN void sum(Pack p, Rounded s) {
      if (team_.a_.reducedOut != nullptr) put(team_.a_.reducedOut, p, s);
      if (pushed_ != nullptr) pushed_->put(p, s.raw);
    }
    FCCL_TEAM_FN void residual(Pack p, Rounded r) { put(team_.a_.residualOut, p, r); }
    FCCL_TEAM_FN void norm(Pack p, Rounded n) { put(team_.a_.normOut, p, n); }
    FCCL_TEAM_FN Outputs& rest() { return *this; }
    FCCL_TEAM_FN int64_t row() const { return row_; }

   private:
    friend class RowTeam;
    FCCL_TEAM_FN Outputs(const RowTeam& team, int64_t row, Send* pushed) : team_(team), row_(row), pushed_(pushed) {}
    FCCL_TEAM_FN void put(void* base, Pack p, Rounded v) const {
      storeUser<D, kEdge>(team_.rowOf(base, row_), p, v.raw);
    }
    const RowTeam& team_;
    int64_t row_;
    Send* pushed_;
  };
  FCCL_TEAM_FN Outputs userOutputs(const RowArgs&, int64_t row) { return {*this, row, nullptr}; }
  FCCL_TEAM_FN Outputs gatherOutputs(const RowArgs&, Send& out, const RowChunk& part, int64_t) {
    out.startRow(part, 0);
    return {*this, part.row0, &out};
  }

  struct Quantizer : PackQuantizer<D, form.nvfp4> {
    using PackQuantizer<D, form.nvfp4>::PackQuantizer;
    template <class K>
    FCCL_TEAM_FN void put(K, Pack p, Rounded n) {
      PackQuantizer<D, form.nvfp4>::put(p, n.raw);
    }
    FCCL_TEAM_FN void finish() {}
  };
  FCCL_TEAM_FN Quantizer quantizer(const RowArgs& a, RowState&, Outputs& out) const {
    const bool reciprocalWanted = !form.nvfp4 && a.quant != QuantKind::kNone;
    return Quantizer(a, out.row(), reciprocalWanted ? __frcp_rn(scale_) : scale_);
  }

 private:
  template <int k, class F>
  FCCL_TEAM_FN void each(int first, int end, F& f) const {
    const int p = first + k * static_cast<int>(blockDim.x);
    const int left = end - p * kElements;
    const bool whole = kEdge == Edge::kWhole || left >= kElements;
    f(Index<k>{}, Pack{p, left <= 0 ? 0 : whole ? kElements : left});
    if constexpr (k + 1 < kPacks) each<k + 1>(first, end, f);
  }
  FCCL_TEAM_FN int strided(int n) const {
    if constexpr (form.once) return n > team_ ? 1 : 0;
    if (n <= teams_) return n > team_ ? 1 : 0;  // the usual case, without the division
    return (n - team_ + teams_ - 1) / teams_;
  }
  // Without norm: the columns that a block takes at a time.
  static FCCL_TEAM_FN int chunkCols() { return static_cast<int>(blockDim.x) * (kPacks * kElements); }
  // TWOSHOT: the most rows of an owner; without norm its columns, whole packs.
  FCCL_TEAM_FN int ownRows() const {
    const int units = form.norm ? rows_ : (cols_ + kElements - 1) / kElements;
    return (units + world_.ranks - 1) / world_.ranks * (form.norm ? 1 : kElements);
  }
  FCCL_TEAM_FN uint32_t rowSumBytes() const { return clusterBlocks() * kPacks * (blockDim.x / 32) * 4u; }

  static FCCL_TEAM_FN float warpSum(float v) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) v = __fadd_rn(v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
  }

  FCCL_TEAM_FN void rotate() {
#pragma unroll
    for (int k = 0; k < kPacks; k++) own_[k] = next_[k];
  }
  // Behind the first row, whose way is longer; not before waitForPrevious(), for the kernel before may have written
  // them.
  FCCL_TEAM_FN void loadConstants() {
    if (kKeepsWeight && !a_.weightIsFp32) {
      forEachPack(0, cols_, [&](auto k, auto p) FCCL_TEAM_LAMBDA {
        weight_[k.kValue] = loadUser<D, kEdge>(static_cast<const char*>(a_.weight), p);
      });
    }
    if (a_.quant != QuantKind::kNone) scale_ = *a_.quantScale;
  }
  FCCL_TEAM_FN void loadResidual(const RowChunk& c) {
    if constexpr (form.norm) {
      if (a_.residual == nullptr) return;
      const char* row = rowOf(a_.residual, c.row0);
      forEachPack(c.col0, c.cols,
                  [&](auto k, auto p) FCCL_TEAM_LAMBDA { residual_[k.kValue] = loadUser<D, kEdge>(row, p); });
    }
  }

  // The epoch stands in one word for each block of the largest usual grid, all the same between two calls, so that a
  // block may move its words on as soon as its own threads have read one; a larger grid reads one word, and the block
  // that has arrived last moves all on. Either way no block waits for another, and a replayed graph finds the state
  // where the call before left it.
  static FCCL_TEAM_FN bool countsArrivals() { return gridDim.x > kEpochWords; }
  // By one warp, when all threads of the block have read the epoch.
  FCCL_TEAM_FN void moveEpochOn() const {
    const uint32_t next = epoch_ == 2 ? 0 : epoch_ + 1;
    const uint32_t lane = threadIdx.x % 32;
    uint32_t first = blockIdx.x;
    uint32_t step = gridDim.x;
    if (countsArrivals()) [[unlikely]] {
      uint32_t arrived = 0;
      if (lane == 0) arrived = atomicInc(&world_.state->arrived, gridDim.x - 1);
      if (__shfl_sync(0xffffffffu, arrived, 0) != gridDim.x - 1) return;
      first = 0;
      step = 1;
    }
    for (uint32_t i = first + lane * step; i < kEpochWords; i += 32 * step) {
      *static_cast<volatile uint32_t*>(&world_.state->epochs[i]) = next;
    }
  }
  FCCL_TEAM_FN void leaveEpoch() {
    arrived_ = true;
    if constexpr (form.nvfp4) zeroScalePadding();
    if constexpr (kPacks > 1)
      __syncthreads();  // measured: with several packs per thread the poll begins better together
    if (kPacks > 1 ? threadIdx.x < 32 : arriveAtBlockBarrier()) moveEpochOn();
  }
  // Only the last warp waits for the others, and is told so by true. Barrier 1: __syncthreads() is barrier 0.
  static FCCL_TEAM_FN bool arriveAtBlockBarrier() {
    if (threadIdx.x / 32 == blockDim.x / 32 - 1) {
      asm volatile("barrier.sync.aligned 1, %0;" ::"r"(blockDim.x) : "memory");
      return true;
    }
    asm volatile("barrier.arrive.aligned 1, %0;" ::"r"(blockDim.x) : "memory");
    return false;
  }
  FCCL_TEAM_FN void letNextBeginAfterLast() const {
    if (!kTwoshot && opened_ + 1 == chunks_) letNextBegin();
  }

  FCCL_TEAM_FN uint32_t slotStride() const { return (rowBytes_ + 15) / 16 * 16; }
  // Of this rank's memory or, the same everywhere, of a peer's. ONESHOT: [source][row]; TWOSHOT: [source][row of the
  // owner], then gathered rows.
  FCCL_TEAM_FN uint32_t slotOffset(int source, int channel, int row, int owner = -1) const {
    const uint32_t stride = slotStride();
    if constexpr (!kTwoshot) return epochOffset_ + static_cast<uint32_t>(source * rows_ + row) * stride;
    const int each = ownRows();
    if (!form.norm) {  // offsets of packs stay those of the whole row
      const auto share = static_cast<uint32_t>(each * kBytes);
      const auto all = share * static_cast<uint32_t>(world_.ranks);
      if (channel == kGatherChannel) return epochOffset_ + all;
      const auto to = static_cast<uint32_t>(owner < 0 ? world_.rank : owner);
      return epochOffset_ + static_cast<uint32_t>(source) * share - to * share;
    }
    const auto reduceRows = static_cast<uint32_t>(each * world_.ranks);
    if (channel == kGatherChannel) return epochOffset_ + (reduceRows + static_cast<uint32_t>(row)) * stride;
    const int to = owner < 0 ? world_.rank : owner;
    const int begin = to * (rows_ / world_.ranks) + min(to, rows_ % world_.ranks);
    return epochOffset_ + static_cast<uint32_t>(source * each + row - begin) * stride;
  }

  FCCL_TEAM_FN char* ownMemory() const { return world_.memory[world_.rank]; }
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
      if (missing < 0 || silent_) break;
      silent_ = patience.ended([&]() FCCL_TEAM_LAMBDA { return rankOf(missing); });
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

  FCCL_TEAM_FN void zeroScalePadding() const {
    const auto end = static_cast<uint32_t>(a_.allRows);
    if (static_cast<uint32_t>(a_.firstRow) + static_cast<uint32_t>(rows_) != end) return;
    const uint32_t blocks = static_cast<uint32_t>(cols_) / kNvfp4Block;
    const uint32_t tiles = (blocks + 3) / 4;
    // By the blocks that have no row, where the planner has added some; else by all.
    uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t threads = gridDim.x * blockDim.x;
    if (form.once && teams_ > rows_) {
      if (team_ < rows_) return;
      const uint32_t ofRows = threads / static_cast<uint32_t>(teams_) * static_cast<uint32_t>(rows_);
      thread -= ofRows;
      threads -= ofRows;
    }
    if (a_.scaleLayout == fcclScaleSwizzled128x4 && end % 128 != 0) {
      // 16 bytes hold the scales of rows m, m + 32, m + 64, m + 96: those past the last row.
      const uint32_t used = end % 128;
      const uint32_t m = threadIdx.x % 32;  // unit % 32: threads is a multiple of 32
      const uint32_t usedHere = used > m ? (used - m + 31) / 32 : 0;
      uint8_t* tile = a_.scaleOut + static_cast<uint64_t>(end / 128) * tiles * 512;
      const bool wide = reinterpret_cast<uintptr_t>(tile) % 16 == 0;
      for (uint32_t unit = thread; unit < tiles * 32; unit += threads) {
        uint8_t* at = tile + unit * 16;
        if (wide) {
          if (usedHere == 0) *reinterpret_cast<uint4*>(at) = make_uint4(0, 0, 0, 0);
          if (usedHere == 1 || usedHere == 3) *reinterpret_cast<uint32_t*>(at + 4 * usedHere) = 0;
          if (usedHere == 1 || usedHere == 2) *reinterpret_cast<uint2*>(at + 8) = make_uint2(0, 0);
        } else {
#pragma unroll 1
          for (uint32_t q = usedHere; q < 4; q++) zero4(at + 4 * q);
        }
      }
    } else if (a_.scaleLayout == fcclScaleSwizzled8x4) {
      const uint32_t past = (8 - end % 8) % 8;
      for (uint32_t i = thread; i < past * tiles; i += threads) {
        zero4(a_.scaleOut + scaleOffset(a_.scaleLayout, end + i / tiles, i % tiles * 4, blocks));
      }
    }
    if (a_.scaleLayout == fcclScaleLinear || blocks % 4 == 0) return;
    const uint32_t each = 4 - blocks % 4;
    for (uint32_t i = thread; i < end * each; i += threads) {
      a_.scaleOut[scaleOffset(a_.scaleLayout, i / each, blocks + i % each, blocks)] = 0;
    }
  }
  static FCCL_TEAM_FN void zero4(uint8_t* at) {
    if (reinterpret_cast<uintptr_t>(at) % 4 == 0) {
      *reinterpret_cast<uint32_t*>(at) = 0;
      return;
    }
    for (int i = 0; i < 4; i++) at[i] = 0;
  }

  const KernelWorld& world_;
  const RowArgs& a_;
  Memory& memory_;
  const int rows_;
  const int cols_;
  const uint32_t rowBytes_;
  int part_ = 0;  // of the row, in a cluster
  int team_ = 0;  // number of this block or cluster
  int teams_ = 1;
  int firstPack_ = 0;
  uint32_t epoch_ = 0;
  uint32_t epochOffset_ = 0;
  int chunks_ = 0;
  int opened_ = 0;
  int sums_ = 0;
  bool arrived_ = false;
  bool silent_ = false;
  float scale_ = 1.0f;
  float colsReciprocal_ = 0.0f;
  Raw next_[kPacks];  // loaded and sent
  Raw own_[kPacks];   // of the row that is waited for
  Raw residual_[kPacks];
  Raw weight_[kPacks];
};

}  // namespace fccl::cuda
