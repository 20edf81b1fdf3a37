// What all CUDA teams have that take a row at a time: a block of threads, or a cluster of blocks, each thread with its
// packs of the row in registers.
#pragma once

#include "kernels/cuda/quantizer.cuh"
#include "kernels/cuda/row_stage.cuh"
#include "kernels/cuda/row_sum.cuh"
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

template <class D, uint32_t formCode>
class RowBase {
 public:
  static constexpr Form form = Form::of(formCode);
  static constexpr int kElements = D::kElements;
  static constexpr int kBytes = 16 / kElements;
  static constexpr int kPacks = form.packs;
  static constexpr Edge kEdge = !form.aligned ? Edge::kAny : form.norm ? Edge::kWhole : Edge::kTail;
  // With more packs the registers are needed otherwise, and the caches have the weights.
  static constexpr bool kKeepsWeight = form.norm && (form.once || kPacks == 1);
  // Two roundings in one instruction, or in fp32: the same bits. Measured: with several packs per thread fp32 adds let
  // the ranks' polls and stores fall apart better, NVFP4 is bound by instructions.
  static constexpr bool kPackedAdd = kPacks == 1 || form.nvfp4;
  // Of many rows the input is read once, and the residual is wanted next a layer later; measured: 2 to 8 % where ranks
  // share a GPU, nothing where they do not.
  static constexpr Reuse kReuse = form.lookAhead ? Reuse::kNone : Reuse::kSoon;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  static constexpr bool kStaged = form.staged();
#else
  static constexpr bool kStaged = false;
#endif
  using Memory = typename RowSum<formCode>::Memory;
  using Values = Floats<kElements>;
  struct Rounded {
    Raw raw;
    FCCL_TEAM_FN Values widen() const { return D::widen(raw); }
    FCCL_TEAM_FN Raw narrow() const { return raw; }
  };

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
  FCCL_TEAM_FN Values weight(const RowArgs& a, K k, Pack p) const {
    if constexpr (kStaged) return stage_.template weight<kElements>(k.kValue);
    return loadWeight(a, k, p);
  }
  template <class K>
  FCCL_TEAM_FN Values loadWeight(const RowArgs& a, K k, Pack p) const {
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
    FCCL_TEAM_FN explicit RowState(const RowBase&) {}
    FCCL_TEAM_FN void begin(int64_t) {}
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
    friend class RowBase;
    Raw kept_[kPacks];
    float squares_[kPacks];
  };
  FCCL_TEAM_FN float squares(const RowState& state) { return sum_.sum(state.squares_, part_, chunks_); }

  class Outputs {
   public:
    FCCL_TEAM_FN Outputs(const RowBase& team, int64_t row) : team_(team), row_(row) {}
    FCCL_TEAM_FN void sum(Pack p, Rounded s) {
      if (team_.a_.reducedOut != nullptr) put(team_.a_.reducedOut, p, s);
    }
    FCCL_TEAM_FN void residual(Pack p, Rounded r) { put<kReuse>(team_.a_.residualOut, p, r); }
    FCCL_TEAM_FN void norm(Pack p, Rounded n) { put(team_.a_.normOut, p, n); }
    FCCL_TEAM_FN Outputs& rest() { return *this; }
    FCCL_TEAM_FN int64_t row() const { return row_; }

   private:
    template <Reuse reuse = Reuse::kSoon>
    FCCL_TEAM_FN void put(void* base, Pack p, Rounded v) const {
      storeUser<D, kEdge, reuse>(team_.rowOf(base, row_), p, v.raw);
    }
    const RowBase& team_;
    int64_t row_;
  };

  template <class Wire = NoWire>
  class Quantizer : public PackQuantizer<D, form.nvfp4, Wire> {
    using Base = PackQuantizer<D, form.nvfp4, Wire>;

   public:
    using Base::Base;
    template <class K>
    FCCL_TEAM_FN void put(K k, Pack p, Rounded n) {
      if constexpr (form.nvfp4) {
        packs_[k.kValue] = p;
        values_[k.kValue] = n.raw;
      } else {
        Base::fp8Pack(p, n.widen());
      }
    }
    FCCL_TEAM_FN void finish() {
      if constexpr (form.nvfp4) Base::nvfp4Packs(packs_, values_);
    }

   private:
    Pack packs_[kPacks];
    Raw values_[kPacks];
  };
  template <class State, class Out>
  FCCL_TEAM_FN Quantizer<> quantizer(const RowArgs& a, State&, Out& out) const {
    return Quantizer<>(a, out.row(), quantScale(a));
  }

 protected:
  // As PackQuantizer takes it.
  FCCL_TEAM_FN float quantScale(const RowArgs& a) const {
    const bool reciprocalWanted = !form.nvfp4 && a.quant != QuantKind::kNone;
    return reciprocalWanted ? __frcp_rn(scale_) : scale_;
  }
  FCCL_TEAM_FN RowBase(const RowArgs& a, Memory& memory)
      : a_(a),
        rows_(static_cast<int>(a.rows)),
        cols_(static_cast<int>(a.cols)),
        rowBytes_(static_cast<uint32_t>(a.cols) * kBytes),
        sum_(memory) {
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

  // How many of n pieces are this team's: piece team_, team_ + teams_, ...
  FCCL_TEAM_FN int strided(int n) const {
    if constexpr (form.once) return n > team_ ? 1 : 0;
    if (n <= teams_) return n > team_ ? 1 : 0;  // the usual case, without the division
    return (n - team_ + teams_ - 1) / teams_;
  }
  // Without norm: the columns that a block takes at a time.
  static FCCL_TEAM_FN int chunkCols() { return static_cast<int>(blockDim.x) * (kPacks * kElements); }

  // Not before waitForPrevious(), for the kernel before may have written them.
  FCCL_TEAM_FN void loadConstants() {
    if (kKeepsWeight && !a_.weightIsFp32) {
      forEachPack(0, cols_, [&](auto k, auto p) FCCL_TEAM_LAMBDA {
        weight_[k.kValue] = loadUser<D, kEdge>(static_cast<const char*>(a_.weight), p);
      });
    }
    if constexpr (kStaged) {
      forEachPack(0, cols_, [&](auto k, auto p) FCCL_TEAM_LAMBDA {
        stage_.template keepWeight<kElements>(k.kValue, loadWeight(a_, k, p));
      });
    }
    if (a_.quant != QuantKind::kNone) scale_ = *a_.quantScale;
  }
  FCCL_TEAM_FN void prepareMean() { colsReciprocal_ = reciprocal(static_cast<float>(cols_)); }

  const RowArgs& a_;
  const int rows_;
  const int cols_;
  const uint32_t rowBytes_;
  int part_ = 0;  // of the row, in a cluster
  int team_ = 0;  // number of this block or cluster
  int teams_ = 1;
  int firstPack_ = 0;
  int chunks_ = 0;  // rows, or runs of packs, that are this team's
  RowSum<formCode> sum_;
  RowStage<kPacks> stage_;
  float scale_ = 1.0f;
  float colsReciprocal_ = 0.0f;
  Raw weight_[kPacks];

 private:
  template <int k, class F>
  FCCL_TEAM_FN void each(int first, int end, F& f) const {
    const int p = first + k * static_cast<int>(blockDim.x);
    const int left = end - p * kElements;
    const bool whole = kEdge == Edge::kWhole || left >= kElements;
    f(Index<k>{}, Pack{p, left <= 0 ? 0 : whole ? kElements : left});
    if constexpr (k + 1 < kPacks) each<k + 1>(first, end, f);
  }
};

}  // namespace fccl::cuda
