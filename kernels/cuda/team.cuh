// The CUDA team: one block of threads, a row at a time, each thread with `packsPerThread` packs in registers; wire
// Lamport.
#pragma once

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/packs.cuh"
#include "kernels/cuda/quantizer.cuh"
#include "kernels/epilogue.h"

namespace fccl::cuda {

template <int value>
struct Index {
  static constexpr int kValue = value;
};

struct RowChunk {
  int64_t row0;
  int64_t rows;
  int64_t col0;
  int64_t cols;
};

template <class D, int packsPerThread, bool aligned>
class BlockTeam {
 public:
  static constexpr int kLookAhead = 0;  // other blocks of the grid overlap instead
  static constexpr int kReduceChannel = 0;
  static constexpr int kGatherChannel = 1;
  static constexpr bool kGathersSums = true;
  using Values = Floats<D::kElements>;
  struct Rounded {
    Raw raw;
    FCCL_TEAM_FN Values widen() const { return D::widen(raw); }
    FCCL_TEAM_FN Raw narrow() const { return raw; }
  };

  FCCL_TEAM_FN BlockTeam(const CudaWorld& world, const RowArgs& a, float* partials, uint32_t* epochShared)
      : world_(world), a_(a), partials_(partials), epochShared_(epochShared) {}

  FCCL_TEAM_FN int rank() const { return world_.rank; }
  FCCL_TEAM_FN int ranks() const { return world_.ranks; }
  // A wait that gives up lets its thread go on with what is there; all threads reach the end, and the host reads why.
  static constexpr FCCL_TEAM_FN bool failed() { return false; }

  // The epoch is read by every block before it counts itself as arrived, and moved on by the block that arrives last:
  // no block waits for another, and a replayed graph finds the state where the last call left it.
  FCCL_TEAM_FN void begin(const RowArgs& a) {
    if (threadIdx.x == 0) {
      *epochShared_ = *reinterpret_cast<volatile uint32_t*>(&world_.state->epoch);
      __threadfence();
      if (atomicAdd(&world_.state->arrived, 1u) == gridDim.x - 1) {
        world_.state->arrived = 0;
        *reinterpret_cast<volatile uint32_t*>(&world_.state->epoch) = *epochShared_ + 1;
      }
    }
    __syncthreads();
    epochOffset_ = *epochShared_ % 3u * world_.epochBytes;
    if (a.quant == QuantKind::kNvfp4) zeroScalePadding(a);
  }
  FCCL_TEAM_FN void end(const RowArgs&) {}

  FCCL_TEAM_FN int64_t chunks(const RowArgs& a) const { return stridedCount(a.rows); }
  FCCL_TEAM_FN RowChunk chunk(const RowArgs& a, int64_t i) const { return {blockIdx.x + i * gridDim.x, 1, 0, a.cols}; }
  // Of each owner's rows this block takes every gridDim.x-th.
  FCCL_TEAM_FN int64_t sharedChunks(const RowArgs& a) const {
    return stridedCount((a.rows + world_.ranks - 1) / world_.ranks);
  }
  FCCL_TEAM_FN RowChunk part(const RowArgs& a, int64_t i, int owner) const {
    const int64_t each = a.rows / world_.ranks;
    const int64_t extra = a.rows % world_.ranks;
    const int64_t begin = owner * each + (owner < extra ? owner : extra);
    const int64_t end = begin + each + (owner < extra ? 1 : 0);
    const int64_t row = begin + blockIdx.x + i * gridDim.x;
    return {row, row < end ? 1 : 0, 0, a.cols};
  }

  FCCL_TEAM_FN char* rowOf(const void* base, int64_t row) const {
    return static_cast<char*>(const_cast<void*>(base)) + row * a_.cols * (16 / D::kElements);
  }
  static FCCL_TEAM_FN Raw load(const char* row, Pack p) { return loadUser<D, aligned>(row, p); }
  static FCCL_TEAM_FN Values widen(Raw raw) { return D::widen(raw); }
  static FCCL_TEAM_FN Rounded round(Values v) { return {D::narrow(v)}; }
  static FCCL_TEAM_FN float inverseSqrt(float x) { return __fdiv_rn(1.0f, __fsqrt_rn(x)); }

  template <class F>
  static FCCL_TEAM_FN void forEachPack(int64_t, int64_t cols, F&& f) {
    each<0>(static_cast<int>(cols), f);
  }

  FCCL_TEAM_FN Values weight(const RowArgs& a, Pack p) const {
    Values w;
    if (!a.weightIsFp32) {
      w = D::widen(load(static_cast<const char*>(a.weight), p));
    } else {
#pragma unroll
      for (int i = 0; i < D::kElements; i++) {
        w.v[i] = i < p.elements ? static_cast<const float*>(a.weight)[p.index * D::kElements + i] : 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < D::kElements; i++) w.v[i] = __fadd_rn(w.v[i], a.weightBias);
    return w;
  }

  // The row between its passes, in registers. Squares are kept per pack: their order must not depend on the block's
  // size.
  class RowState {
   public:
    FCCL_TEAM_FN explicit RowState(BlockTeam&) {}
    FCCL_TEAM_FN void begin(int64_t) {
#pragma unroll
      for (int k = 0; k < packsPerThread; k++) squares_[k] = 0.0f;
    }
    template <class K>
    FCCL_TEAM_FN void keepOwn(K, Raw raw) {
      own_[K::kValue] = raw;
    }
    template <class K>
    FCCL_TEAM_FN Raw own(K, const char*, Pack) const {
      return own_[K::kValue];
    }
    template <class K>
    FCCL_TEAM_FN void keep(K, Pack, Raw raw) {
      kept_[K::kValue] = raw;
    }
    template <class K>
    FCCL_TEAM_FN Raw kept(K, Pack) const {
      return kept_[K::kValue];
    }
    template <class K>
    FCCL_TEAM_FN void addSquares(K, Values v) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < D::kElements; i++) sum = __fadd_rn(sum, __fmul_rn(v.v[i], v.v[i]));
      squares_[K::kValue] = sum;
    }
    FCCL_TEAM_FN RowState& rest() { return *this; }

   private:
    friend class BlockTeam;
    Raw own_[packsPerThread];
    Raw kept_[packsPerThread];
    float squares_[packsPerThread];
  };

  // Order: the elements of a pack, a lane tree over 32 packs, a tree over these groups: a function of the row length
  // only.
  FCCL_TEAM_FN float squares(RowState& state) {
    const int warps = static_cast<int>(blockDim.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    __syncthreads();  // the partials of the row before have been read
#pragma unroll
    for (int k = 0; k < packsPerThread; k++) {
      float sum = state.squares_[k];
#pragma unroll
      for (int step = 16; step >= 1; step /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, step));
      if (lane == 0) partials_[k * warps + static_cast<int>(threadIdx.x) / 32] = sum;
    }
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int k = 0; k < packsPerThread; k++) {
      if (lane + k * 32 < packsPerThread * warps) total = __fadd_rn(total, partials_[lane + k * 32]);
    }
#pragma unroll
    for (int step = 16; step >= 1; step /= 2) total = __fadd_rn(total, __shfl_xor_sync(0xffffffffu, total, step));
    return total;
  }
  FCCL_TEAM_FN BlockTeam& rowTeam() { return *this; }

  // ---- Sending: into every peer's slot, or into an owner's.
  class Send {
   public:
    FCCL_TEAM_FN void startRow(const RowChunk& chunk, int64_t) { row_ = chunk.row0; }
    FCCL_TEAM_FN void startRowFor(int, const RowChunk& part, int64_t) { row_ = part.row0; }
    FCCL_TEAM_FN void put(Pack p, Raw raw) {
      raw = withoutSentinel(raw);
      for (int r = 0; r < team_.ranks(); r++) {
        if (r != team_.rank()) storeSlot(team_.slot(r, team_.rank(), channel_, row_) + p.index * 16, raw);
      }
    }
    FCCL_TEAM_FN void putFor(int owner, Pack p, Raw raw) {
      storeSlot(team_.slot(owner, team_.rank(), channel_, row_) + p.index * 16, withoutSentinel(raw));
    }

   private:
    friend class BlockTeam;
    FCCL_TEAM_FN Send(BlockTeam& team, int channel) : team_(team), channel_(channel) {}
    BlockTeam& team_;
    int channel_;
    int64_t row_ = 0;
  };
  FCCL_TEAM_FN Send beginSend(int channel, int64_t) { return Send(*this, channel); }
  FCCL_TEAM_FN void endSend(Send&) {}

  // ---- Receiving
  class From {
   public:
    FCCL_TEAM_FN void startRow(const RowChunk& chunk, int64_t) { row_ = chunk.row0; }
    FCCL_TEAM_FN Raw take(int r, Pack p) {
      char* at = team_.slot(team_.rank(), r, channel_, row_) + p.index * 16;
      Raw raw = loadSlot(at);
      if (holdsSentinel(raw)) raw = team_.await(at);
      storeSlot(at, Raw{{kSentinel, kSentinel, kSentinel, kSentinel}});
      return raw;
    }
    FCCL_TEAM_FN Values sum(Pack p, Raw own) {
      Values total{};
      for (int r = 0; r < team_.ranks(); r++) total = total + D::widen(r == team_.rank() ? own : take(r, p));
      return total;
    }

   private:
    friend class BlockTeam;
    FCCL_TEAM_FN From(BlockTeam& team, int channel) : team_(team), channel_(channel) {}
    BlockTeam& team_;
    int channel_;
    int64_t row_ = 0;
  };
  FCCL_TEAM_FN From open(int channel, int64_t) { return From(*this, channel); }
  FCCL_TEAM_FN void close(From&) {}

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
    friend class BlockTeam;
    FCCL_TEAM_FN Outputs(const BlockTeam& team, int64_t row, Send* pushed) : team_(team), row_(row), pushed_(pushed) {}
    FCCL_TEAM_FN void put(void* base, Pack p, Rounded v) const {
      storeUser<D, aligned>(team_.rowOf(base, row_), p, v.raw);
    }
    const BlockTeam& team_;
    int64_t row_;
    Send* pushed_;
  };
  FCCL_TEAM_FN Outputs userOutputs(const RowArgs&, int64_t row) { return {*this, row, nullptr}; }
  FCCL_TEAM_FN Outputs gatherOutputs(const RowArgs&, Send& out, const RowChunk& part, int64_t) {
    out.row_ = part.row0;
    return {*this, part.row0, &out};
  }

  struct Quantizer : PackQuantizer<D> {
    using PackQuantizer<D>::PackQuantizer;
    template <class K>
    FCCL_TEAM_FN void put(K k, Pack p, Rounded n) {
      PackQuantizer<D>::put(k, p, n.raw);
    }
  };
  FCCL_TEAM_FN Quantizer quantizer(const RowArgs& a, RowState&, Outputs& out) const { return Quantizer(a, out.row()); }

 private:
  template <int k, class F>
  static FCCL_TEAM_FN void each(int cols, F& f) {
    const int p = static_cast<int>(threadIdx.x) + k * static_cast<int>(blockDim.x);
    const int left = cols - p * D::kElements;
    if (left > 0) f(Index<k>{}, Pack{p, left < D::kElements ? left : D::kElements});
    if constexpr (k + 1 < packsPerThread) each<k + 1>(cols, f);
  }
  FCCL_TEAM_FN int64_t stridedCount(int64_t n) const {
    return n > static_cast<int64_t>(blockIdx.x) ? (n - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
  }
  FCCL_TEAM_FN char* slot(int at, int source, int channel, int64_t row) const {
    const uint64_t index = static_cast<uint64_t>((channel * world_.ranks + source) * a_.rows + row);
    return world_.memory[at] + epochOffset_ + index * rowStride(a_.cols, 16 / D::kElements);
  }

  // Until no word is the sentinel, or the call is aborted, or the time limit has passed.
  FCCL_TEAM_FN Raw await(const char* at) {
    constexpr int kPollsPerLook = 256;
    uint64_t begin = 0;
    for (;;) {
      for (int i = 0; i < kPollsPerLook; i++) {
        const Raw raw = loadSlot(at);
        if (!holdsSentinel(raw)) return raw;
      }
      uint64_t now;
      asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
      if (begin == 0) begin = now;
      const bool late = world_.timeoutNanoseconds != 0 && now - begin > world_.timeoutNanoseconds;
      if (late) *reinterpret_cast<volatile uint32_t*>(&world_.state->aborted) = 1;
      if (late || *reinterpret_cast<volatile uint32_t*>(&world_.state->aborted) != 0) return loadSlot(at);
    }
  }

  FCCL_TEAM_FN void zeroScalePadding(const RowArgs& a) const {
    const int64_t blocks = a.cols / kNvfp4Block;
    const int64_t padded = a.scaleLayout == fcclScaleLinear ? blocks : (blocks + 3) / 4 * 4;
    for (int64_t m = blockIdx.x; m < scaleRows(a.scaleLayout, a.rows); m += gridDim.x) {
      for (int64_t k = (m < a.rows ? blocks : 0) + threadIdx.x; k < padded; k += blockDim.x) {
        a.scaleOut[scaleOffset(a.scaleLayout, m, k, blocks)] = 0;
      }
    }
  }

  const CudaWorld& world_;
  const RowArgs& a_;
  float* partials_;
  uint32_t* epochShared_;
  uint64_t epochOffset_ = 0;
};

}  // namespace fccl::cuda
