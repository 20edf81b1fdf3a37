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

template <class P, class State, class Outputs>
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

  // Norm weights of either type, with the bias added.
  template <class K>
  static FCCL_TEAM_FN Values weight(const RowArgs& a, K, WholePack p) {
    const char* weights = static_cast<const char*>(a.weight);
    if (!a.weightIsFp32) return widen(load(weights, p)) + a.weightBias;
    Values v;
    __builtin_memcpy(&v, weights + p.index * static_cast<int64_t>(sizeof v), sizeof v);
    return v + a.weightBias;
  }
  template <class K>
  static FCCL_TEAM_FN Values weight(const RowArgs& a, K, PartPack p) {
    const char* weights = static_cast<const char*>(a.weight);
    if (!a.weightIsFp32) return widen(load(weights, p)) + a.weightBias;
    Values v{};
    __builtin_memcpy(&v, weights + p.index * static_cast<int64_t>(sizeof v), static_cast<size_t>(p.elements) * 4);
    return v + a.weightBias;
  }

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

  // A row between its two passes.
  class RowState {
   public:
    FCCL_TEAM_FN explicit RowState(char* scratch) : row_(scratch) {}
    FCCL_TEAM_FN void begin() { squares_ = {}; }
    template <class K, class Pack>
    FCCL_TEAM_FN void keep(K, Pack p, Raw raw) {
      store(row_, WholePack{p.index}, raw, false);
    }
    template <class K, class Pack>
    FCCL_TEAM_FN Raw kept(K, Pack p) const {
      return load(row_, WholePack{p.index});
    }
    template <class K>
    FCCL_TEAM_FN void addSquares(K, Values v) {
      squares_.chains[K::kValue] += v * v;
    }
    FCCL_TEAM_FN float squares() const { return squares_.total(); }
    FCCL_TEAM_FN RowState& rest() { return *this; }

   private:
    char* row_;
    SumOfSquares squares_{};
  };

  template <class Outputs>
  static FCCL_TEAM_FN auto quantizer(const RowArgs& a, RowState& state, Outputs& out) {
    return RowQuantizer<Packs, RowState, Outputs>(a, state, out);
  }

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

}  // namespace
}  // namespace fccl::host
