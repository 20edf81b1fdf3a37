// The CUDA team of user buffers: a block, or a cluster of blocks, takes a row at a time and reads it where every rank
// has it. No peer needs to have as many blocks as this rank, or to have all of them running at once.
//
// Order of a block                                              why here
//   wait for the kernels before (programmatic launch)           this rank's input is complete then
//   block 0: tell the peers so                                  `begun`
//   scales, padding of scales, residual of the first row        in the shadow of the wait
//   wait until all peers have begun
//   rows: inputs and residual together, sum, norm, quantize
//   after the last row sum (without norm: the last shard)       what is left is this rank's own
//     count this block as done; the last one tells the peers    `done`
//   let the next kernel begin
//   the last one: wait until all peers are done                 the kernel does not end before, so what follows in the
//                                                               stream may write the input
//
// Memory order. A kernel before has written the input; waitForPrevious() puts that before this rank's `begun`, a
// release at system scope; a peer's first warp acquires it at that scope, and its block barrier hands it on to the
// threads that read. They read by ordinary loads: after the acquire none may be answered from what a cache held before,
// and the kernel writes where it reads (in place), so the compiler takes no read-only path. The way back: a block's
// reads, and what it has written into peers' windows, come before its row sum (each partial depends on what its warp
// has read) or its block barrier, that before the arrival of its first thread (release; behind a fence at system scope
// where peers were written to), that before the last block's (acquire), that before `done`, a release at system scope,
// which the peer's last block acquires before its kernel ends.
//
// A rank that gives up waiting for `done` takes back its own: its next kernels may write the input, while a peer that
// is not done may still be reading it. That peer then waits until its host has learned of the failure, and its result,
// which may be wrong, does not pass for one.
#pragma once

#include "kernels/cuda/row_base.cuh"
#include "kernels/cuda/scale_padding.cuh"
#include "kernels/cuda/slots.cuh"

namespace fccl::cuda {

FCCL_TEAM_FN uint32_t acquireFlag(const uint32_t* at) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
FCCL_TEAM_FN void releaseFlag(uint32_t* at, uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
FCCL_TEAM_FN void systemFence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
// Counts to `last`, then from 0 again; the count before. Release and acquire at the scope of the GPU.
FCCL_TEAM_FN uint32_t countArrival(uint32_t* at, uint32_t last) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(last) : "memory");
  return before;
}

template <class D, uint32_t formCode>
class WindowTeam : public RowBase<D, formCode> {
  using Base = RowBase<D, formCode>;
  using Base::a_, Base::rows_, Base::cols_, Base::rowBytes_, Base::team_, Base::teams_, Base::chunks_;
  using Base::strided, Base::chunkCols;

 public:
  using Base::forEachPack, Base::rowOf, Base::round;
  using Base::form, Base::kElements, Base::kBytes, Base::kPacks, Base::kEdge;
  using typename Base::Memory, typename Base::Rounded, typename Base::Values, typename Base::RowState;

  FCCL_TEAM_FN WindowTeam(const CudaWorld& world, const RowArgs& a, const Windows& windows, Memory& memory)
      : Base(a, memory), world_(world), windows_(windows) {}

  FCCL_TEAM_FN int rank() const { return world_.rank; }
  FCCL_TEAM_FN int ranks() const { return world_.ranks; }
  // With a norm a block goes on with what is there, since others of its cluster wait for its partial sums; the host
  // reads why. Without, it must not write to the peers.
  FCCL_TEAM_FN bool failed() const { return !form.norm && silent_; }

  FCCL_TEAM_FN void begin(const RowArgs&) {
    this->sum_.begin();
    waitForPrevious();
    launch_ = *static_cast<volatile uint32_t*>(&world_.state->windowCalls);
    // After a wait of an earlier call was given up nothing is told, and nothing awaited.
    silent_ = *static_cast<volatile uint32_t*>(&world_.state->aborted) != 0;
    if (blockIdx.x == 0 && firstWarp()) tell(2 * launch_ + 1);
    if constexpr (form.norm) {
      chunks_ = strided(rows_);
      this->prepareMean();
      this->loadConstants();
      if constexpr (form.nvfp4) {
        zeroScalePadding(a_, static_cast<uint32_t>(rows_), static_cast<uint32_t>(cols_),
                         blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x);
      }
      if (chunks_ > 0) loadResidual(team_);
    }
  }
  FCCL_TEAM_FN void end(const RowArgs&) {
    ended_ = true;
    if (windows_.nextBeginsEarly) letNextBegin();
    if (form.norm && chunks_ == 0) this->sum_.endWithout();
    if (form.norm && chunks_ > 0) return;  // has left with its last row
    __syncthreads();                       // all threads have read, and written to the peers, what they had to
    leave();
  }
  // begin() and end() have told the peers; here is the wait for them.
  FCCL_TEAM_FN void barrier() {
    if (!ended_) {
      silent_ = __syncthreads_or(firstWarp() && !allHaveTold(2 * launch_ + 1)) != 0;
    } else if (last_) {
      if (__any_sync(0xffffffffu, !allHaveTold(2 * launch_ + 2)) != 0) takeBack();
    }
  }

  // The row sum is there when all threads have read the row; what is left of the last one is the own outputs.
  FCCL_TEAM_FN float squares(const RowState& state) {
    const float total = Base::squares(state);
    if (row_ + teams_ >= rows_) leave();
    return total;
  }

  // ---- What is this team's
  FCCL_TEAM_FN int chunks(const RowArgs&) const { return strided(rows_); }
  FCCL_TEAM_FN RowChunk chunk(const RowArgs&, int i) const { return {team_ + i * teams_, 1, 0, cols_}; }
  // Without norm: this rank's packs of the one row.
  FCCL_TEAM_FN int sharedChunks(const RowArgs&) const { return strided((ownCols() + chunkCols() - 1) / chunkCols()); }
  FCCL_TEAM_FN RowChunk part(const RowArgs&, int i, int owner) const {
    const int begin = owner * ownCols() + (team_ + i * teams_) * chunkCols();
    const int end = min(min((owner + 1) * ownCols(), begin + chunkCols()), cols_);
    return {0, begin < end ? 1 : 0, begin, end - begin};
  }

  template <class K>
  FCCL_TEAM_FN Raw residual(K k, const char*, Pack) const {
    return residual_[k.kValue];
  }
  FCCL_TEAM_FN WindowTeam& rowTeam() { return *this; }

  // ---- Windows: the sums of this thread's packs of a row, in fp32.
  class WindowRow {
   public:
    template <class K>
    FCCL_TEAM_FN Rounded sum(K k, Pack) const {
      return round(totals_[k.kValue]);
    }

   private:
    friend class WindowTeam;
    Values totals_[kPacks];
  };
  FCCL_TEAM_FN WindowRow windowRow(const Span& span) {
    row_ = static_cast<int>(span.row);
    if (form.norm && row_ != team_) loadResidual(row_);
    WindowRow row;
#pragma unroll
    for (int k = 0; k < kPacks; k++) row.totals_[k] = Values{};
    const char* own = rowOf(a_.input, row_);
    // As many ranks' packs are asked for at once as registers allow.
#pragma unroll 1
    for (int first = 0; first < ranks(); first += kAtOnce) {
      Raw got[kPacks][kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) {
        const bool there = first + i < ranks();
        const char* theirs = own + windows_.input[there ? first + i : 0];
        forEachPack(span.col0, span.cols, [&](auto k, auto p) FCCL_TEAM_LAMBDA {
          got[k.kValue][i] = there ? loadUser<D, kEdge>(theirs, p) : Raw{};
        });
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; i++) {
        if (first + i >= ranks()) continue;
#pragma unroll
        for (int k = 0; k < kPacks; k++) row.totals_[k] = row.totals_[k] + D::widen(got[k][i]);
      }
    }
    return row;
  }

  // ---- Outputs
  FCCL_TEAM_FN typename Base::Outputs userOutputs(const RowArgs&, int64_t row) const { return {*this, row}; }
  class WindowOutputs {
   public:
    FCCL_TEAM_FN void sum(Pack p, Rounded s) const {
      // Each rank begins with another peer, so that they do not all write to the same one.
      int to = team_.rank();
      for (int i = 0; i < team_.ranks(); i++) {
        storeUser<D, kEdge>(static_cast<char*>(team_.a_.reducedOut) + team_.windows_.reducedOut[to], p, s.raw);
        if (++to == team_.ranks()) to = 0;
      }
    }
    FCCL_TEAM_FN void residual(Pack, Rounded) const {}

   private:
    friend class WindowTeam;
    FCCL_TEAM_FN explicit WindowOutputs(const WindowTeam& team) : team_(team) {}
    const WindowTeam& team_;
  };
  FCCL_TEAM_FN WindowOutputs windowOutputs(const RowArgs&) const { return WindowOutputs(*this); }

 private:
  static constexpr int kAtOnce = 2;

  // An owner's columns of a call without norm: whole packs.
  FCCL_TEAM_FN int ownCols() const {
    const int packs = (cols_ + kElements - 1) / kElements;
    return (packs + ranks() - 1) / ranks() * kElements;
  }
  FCCL_TEAM_FN void loadResidual(int row) {
    if (a_.residual == nullptr) return;
    const char* at = rowOf(a_.residual, row);
    forEachPack(0, cols_, [&](auto k, auto p) FCCL_TEAM_LAMBDA { residual_[k.kValue] = loadUser<D, kEdge>(at, p); });
  }

  FCCL_TEAM_FN WindowFlags* flags(int r) const {
    return reinterpret_cast<WindowFlags*>(world_.memory[r] + kEpochs * world_.epochBytes);
  }
  static FCCL_TEAM_FN bool firstWarp() { return threadIdx.x < 32; }
  // This block is done with the windows; the last one tells the peers.
  FCCL_TEAM_FN void leave() {
    if (silent_ || !firstWarp()) return;
    uint32_t arrived = 0;
    if (threadIdx.x == 0) {
      if (!form.norm) systemFence();  // peers were written to
      arrived = countArrival(&world_.state->windowArrived, gridDim.x - 1);
    }
    last_ = __shfl_sync(0xffffffffu, arrived, 0) == gridDim.x - 1;
    if (!last_) return;
    __syncwarp();  // hands on what the arrival has acquired
    // All blocks have read it; the next launch reads it when this one has ended.
    if (threadIdx.x == 0) *static_cast<volatile uint32_t*>(&world_.state->windowCalls) = launch_ + 1;
    tell(2 * launch_ + 2);
  }
  // What follows is done by a block's first warp, each lane for its peers.
  template <class F>
  FCCL_TEAM_FN void eachPeer(F&& f) const {
    for (int r = static_cast<int>(threadIdx.x); r < ranks(); r += 32) {
      if (r != rank()) f(r);
    }
  }
  FCCL_TEAM_FN void tell(uint32_t what) const {
    if (silent_) return;
    eachPeer([&](int r) FCCL_TEAM_LAMBDA { releaseFlag(&flags(r)->reached[rank()], what); });
  }
  // False where this lane has given up.
  FCCL_TEAM_FN bool allHaveTold(uint32_t what) const {
    bool gaveUp = silent_;
    eachPeer([&](int r) FCCL_TEAM_LAMBDA {
      const uint32_t* flag = &flags(rank())->reached[r];
      Patience<CudaWorld> patience(world_);
      while (!gaveUp && static_cast<int32_t>(acquireFlag(flag) - what) < 0) {
        gaveUp = patience.ended([&]() FCCL_TEAM_LAMBDA { return r; });
      }
    });
    return !gaveUp;
  }
  // A value that no peer at this launch, or at the one before, takes for what it awaits. The fence, so that it comes
  // before whatever a later kernel writes.
  FCCL_TEAM_FN void takeBack() const {
    constexpr uint32_t kNever = 0x80000000u;
    eachPeer([&](int r) FCCL_TEAM_LAMBDA { releaseFlag(&flags(r)->reached[rank()], 2 * launch_ + 2 + kNever); });
    systemFence();
  }

  const CudaWorld& world_;
  const Windows& windows_;
  uint32_t launch_ = 0;
  bool silent_ = false;
  bool ended_ = false;
  bool last_ = false;
  int row_ = 0;  // that is being read
  Raw residual_[kPacks];
};

}  // namespace fccl::cuda
