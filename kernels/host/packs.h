// One row as one CPU thread sees it: packs of vector registers, the kept row, the sum of squares in its fixed order.
#pragma once

#include "kernels/call.h"
#include "kernels/host/simd.h"
#include "kernels/host/world.h"

namespace fccl::host {
namespace {

template <int value>
struct Index {
  static constexpr int kValue = value;
};

// A pack of the row, counted from the row's start; the last one may hold fewer elements than a register.
struct WholePack {
  int64_t index;
};
struct PartPack {
  int64_t index;
  int elements;
};

template <class P, class Kept, class Outputs>
class RowQuantizer;

template <class DataType, class IsaType>
struct Packs {
  using D = DataType;
  using Isa = IsaType;
  using N = Num<D, Isa>;
  using Raw = typename N::Raw;
  using Values = typename N::Values;
  using Rounded = typename N::Rounded;
  static constexpr int kLanes = Isa::kLanes;
  // 64 partial sums of squares on every instruction set: element i of a row belongs to partial sum i % 64.
  static constexpr int kChains = 64 / kLanes;

  static FCCL_TEAM_FN int64_t byteOf(int64_t pack) { return pack * kLanes * static_cast<int64_t>(D::kBytes); }

  static FCCL_TEAM_FN Raw load(const char* row, WholePack p) {
    Raw raw;
    __builtin_memcpy(&raw, row + byteOf(p.index), sizeof raw);
    return raw;
  }
  static FCCL_TEAM_FN Raw load(const char* row, PartPack p) {
    Raw raw{};
    __builtin_memcpy(&raw, row + byteOf(p.index), static_cast<size_t>(p.elements) * D::kBytes);
    return raw;
  }
  static FCCL_TEAM_FN void store(char* row, WholePack p, Raw raw, bool stream) {
    if (stream) {
      Isa::stream(row + byteOf(p.index), raw);
    } else {
      __builtin_memcpy(row + byteOf(p.index), &raw, sizeof raw);
    }
  }
  static FCCL_TEAM_FN void store(char* row, PartPack p, Raw raw, bool) {
    __builtin_memcpy(row + byteOf(p.index), &raw, static_cast<size_t>(p.elements) * D::kBytes);
  }

  static FCCL_TEAM_FN Values widen(Raw raw) { return N::widen(raw); }
  static FCCL_TEAM_FN Rounded round(Values v) { return N::round(v); }

  // f(k, p) for the packs of columns [col0, col0 + cols); k = p % kChains as a compile-time number. col0 % 64 == 0.
  template <class F>
  static FCCL_TEAM_FN void forEachPack(int64_t col0, int64_t cols, F&& f) {
    int64_t p = col0 / kLanes;
    int64_t left = cols;
    for (; left >= 64; left -= 64, p += kChains) unroll(p, f, Index<0>{});
    if (left > 0) unrollPart(p, static_cast<int>(left), f, Index<0>{});
  }

  static FCCL_TEAM_FN float inverseRms(float squares, const RowArgs& a) {
    return 1.0f / __builtin_sqrtf(squares / static_cast<float>(a.cols) + a.eps);
  }

  struct SumOfSquares {
    Values chains[kChains];

    // Partial sums c, c + 16, c + 32, c + 48 first, then halves of the 16: the same tree at every vector width.
    FCCL_TEAM_FN float total() const {
      constexpr int kStep = 16 / kLanes;
      Values v[kStep];
      for (int j = 0; j < kStep; j++) {
        v[j] = (chains[j] + chains[j + kStep]) + (chains[j + 2 * kStep] + chains[j + 3 * kStep]);
      }
      for (int half = kStep / 2; half >= 1; half /= 2) {
        for (int j = 0; j < half; j++) v[j] += v[j + half];
      }
      float lanes[kLanes];
      __builtin_memcpy(lanes, &v[0], sizeof lanes);
      for (int half = kLanes / 2; half >= 1; half /= 2) {
        for (int j = 0; j < half; j++) lanes[j] += lanes[j + half];
      }
      return lanes[0];
    }
  };

 private:
  template <class F, int k>
  static FCCL_TEAM_FN void unroll(int64_t p, F& f, Index<k>) {
    f(Index<k>{}, WholePack{p + k});
    if constexpr (k + 1 < kChains) unroll(p, f, Index<k + 1>{});
  }
  template <class F, int k>
  static FCCL_TEAM_FN void unrollPart(int64_t p, int left, F& f, Index<k>) {
    f(Index<k>{}, PartPack{p + k, left < kLanes ? left : kLanes});
    if constexpr (k + 1 < kChains) {
      if (left > kLanes) unrollPart(p, left - kLanes, f, Index<k + 1>{});
    }
  }
};

// What pass 2 asks for while it computes: the rows that are read next; NULL where there is none.
struct RowsAhead {
  const char* peer = nullptr;      // of the peer, in its staging
  const char* residual = nullptr;  // of the residual
};

// A row between its two passes. Passed by value: what stands in memory the compiler reads anew after every store, for
// all that it can know.
template <class P, bool fetches>
class KeptRow {
 public:
  using Raw = typename P::Raw;

  // Where there is no row to fetch, the kept row itself is asked for, which costs less than a look.
  FCCL_TEAM_FN KeptRow(const char* row, char* scratch, const RowsAhead& ahead)
      : row_(row),
        scratch_(scratch),
        peerAhead_(ahead.peer != nullptr ? ahead.peer : row),
        residualAhead_(ahead.residual != nullptr ? ahead.residual : row) {}

  template <class K, class Pack>
  FCCL_TEAM_FN Raw kept(K, Pack p) const {
    if constexpr (fetches && K::kValue * sizeof(Raw) % 64 == 0) {  // once for each cache line
      __builtin_prefetch(peerAhead_ + P::byteOf(p.index));
      __builtin_prefetch(residualAhead_ + P::byteOf(p.index), 0, 2);
    }
    return P::load(row_, p);
  }
  // The normalized row, for the quantizer.
  template <class Pack>
  FCCL_TEAM_FN void keepNorm(Pack p, Raw raw) const {
    P::store(scratch_, WholePack{p.index}, raw, false);
  }
  FCCL_TEAM_FN Raw norm(int64_t pack) const { return P::load(scratch_, WholePack{pack}); }

 private:
  const char* row_;
  char* scratch_;
  const char* peerAhead_;
  const char* residualAhead_;
};

// What pass 2 needs of a team. ownType: the weights are known to be of the data's own type.
template <class P, bool ownType>
class NormTeam : public P {
 public:
  using Values = typename P::Values;

  FCCL_TEAM_FN explicit NormTeam(const RowArgs& a)
      : weights_(static_cast<const char*>(a.weight)), bias_(a.weightBias), isFp32_(a.weightIsFp32) {}

  // Norm weights of either type, with the bias added.
  template <class K>
  FCCL_TEAM_FN Values weight(const RowArgs&, K, WholePack p) const {
    if (ownType || !isFp32_) return P::widen(P::load(weights_, p)) + bias_;
    Values v;
    __builtin_memcpy(&v, weights_ + p.index * static_cast<int64_t>(sizeof v), sizeof v);
    return v + bias_;
  }
  template <class K>
  FCCL_TEAM_FN Values weight(const RowArgs&, K, PartPack p) const {
    if (ownType || !isFp32_) return P::widen(P::load(weights_, p)) + bias_;
    Values v{};
    __builtin_memcpy(&v, weights_ + p.index * static_cast<int64_t>(sizeof v), static_cast<size_t>(p.elements) * 4);
    return v + bias_;
  }
  template <class Kept, class Outputs>
  FCCL_TEAM_FN auto quantizer(const RowArgs& a, const Kept& row, Outputs& out) const {
    return RowQuantizer<P, Kept, Outputs>(a, row, out);
  }

 private:
  const char* weights_;
  float bias_;
  bool isFp32_;
};

}  // namespace
}  // namespace fccl::host
