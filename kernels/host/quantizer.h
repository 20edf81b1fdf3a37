// FP8 and NVFP4 codes of one normalized row: the rules of kernels/formats.h on vectors.
#pragma once

#include "kernels/formats.h"
#include "kernels/host/packs.h"

namespace fccl::host {
namespace {

// Works on the normalized row after pass 2, so that blocks need not coincide with packs.
template <class P, class Kept, class Outputs>
class RowQuantizer {
 public:
  using Values = typename P::Values;
  using Words = typename P::Isa::Words;

  FCCL_TEAM_FN RowQuantizer(const RowArgs& a, const Kept& row, Outputs& out) : a_(a), row_(row), out_(out) {}

  template <class K, class Pack>
  FCCL_TEAM_FN void put(K, Pack p, typename P::Rounded n) {
    row_.keepNorm(p, n.narrow());
  }

  FCCL_TEAM_FN void finish() {
    if (a_.quant == QuantKind::kFp8) {
      fp8();
    } else {
      nvfp4();
    }
  }

 private:
  FCCL_TEAM_FN void fp8() {
    const float reciprocal = 1.0f / *a_.quantScale;
    P::forEachPack(0, a_.cols, [&](auto, auto p) FCCL_TEAM_LAMBDA {
      const Words codes = e4m3Codes<typename P::Isa>(P::widen(row_.norm(p.index)) * reciprocal);
      putBytes(p, codes);
    });
  }
  FCCL_TEAM_FN void putBytes(WholePack p, Words codes) {
    uint8_t* to = out_.quantAt(p.index * P::kLanes);
    P::Isa::storeBytes(to, codes);
    out_.quantWritten(p.index * P::kLanes, P::kLanes);
  }
  FCCL_TEAM_FN void putBytes(PartPack p, Words codes) {
    uint8_t bytes[P::kLanes];
    P::Isa::storeBytes(bytes, codes);
    __builtin_memcpy(out_.quantAt(p.index * P::kLanes), bytes, static_cast<size_t>(p.elements));
    out_.quantWritten(p.index * P::kLanes, p.elements);
  }

  // 16 blocks at a time: their amax, then their scales as vectors (one division each instead of sixteen), then the
  // codes.
  FCCL_TEAM_FN void nvfp4() {
    constexpr int kGroup = 16;
    constexpr int kPacksPerBlock = kNvfp4Block / P::kLanes;
    const float global = *a_.quantScale;
    const int64_t blocks = a_.cols / kNvfp4Block;
    for (int64_t first = 0; first < blocks; first += kGroup) {
      const int count = static_cast<int>(blocks - first < kGroup ? blocks - first : kGroup);
      alignas(64) float amax[kGroup] = {};
      for (int b = 0; b < count; b++) {
        Values most{};
        for (int j = 0; j < kPacksPerBlock; j++) most = larger(most, magnitude(packOf(first + b, j)));
        amax[b] = largestLane(most);
      }
      alignas(64) uint32_t scaleBytes[kGroup];
      alignas(64) float multipliers[kGroup];
      for (int v = 0; v < kGroup; v += P::kLanes) {
        Values most;
        __builtin_memcpy(&most, amax + v, sizeof most);
        const Values wanted = global * most / 6.0f;
        const Words codes = e4m3Codes<typename P::Isa>(wanted) & (Words)(wanted > 0.0f);
        const Words isZero = (Words)(codes == 0u);
        const Values scale = (Values)(codes << 20) * 0x1p120f;
        const Values multiplier = (Values)((Words)(global / scale) & ~isZero);
        __builtin_memcpy(scaleBytes + v, &codes, sizeof codes);
        __builtin_memcpy(multipliers + v, &multiplier, sizeof multiplier);
      }
      for (int b = 0; b < count; b++) {
        out_.scale(first + b, static_cast<uint8_t>(scaleBytes[b]));
        const Words keepMask = Words{} + (scaleBytes[b] != 0 ? 0xffffffffu : 0u);
        for (int j = 0; j < kPacksPerBlock; j++) {
          const Words codes = e2m1Codes<typename P::Isa>(packOf(first + b, j) * multipliers[b]) & keepMask;
          const int64_t at = (first + b) * (kNvfp4Block / 2) + j * (P::kLanes / 2);
          P::Isa::storeNibbles(out_.quantAt(at), codes);
          out_.quantWritten(at, P::kLanes / 2);
        }
      }
    }
  }

  FCCL_TEAM_FN Values packOf(int64_t block, int j) const {
    constexpr int kPacksPerBlock = kNvfp4Block / P::kLanes;
    return P::widen(row_.norm(block * kPacksPerBlock + j));
  }
  static FCCL_TEAM_FN Values magnitude(Values v) { return (Values)((Words)v & 0x7fffffffu); }
  // NaN in `candidate` is passed over.
  static FCCL_TEAM_FN Values larger(Values most, Values candidate) {
    const Words take = (Words)(candidate > most);
    return (Values)((take & (Words)candidate) | (~take & (Words)most));
  }
  static FCCL_TEAM_FN float largestLane(Values v) {
    float lanes[P::kLanes];
    __builtin_memcpy(lanes, &v, sizeof lanes);
    for (int half = P::kLanes / 2; half >= 1; half /= 2) {
      for (int j = 0; j < half; j++) lanes[j] = lanes[j + half] > lanes[j] ? lanes[j + half] : lanes[j];
    }
    return lanes[0];
  }

  const RowArgs& a_;
  const Kept row_;
  Outputs& out_;
};

}  // namespace
}  // namespace fccl::host
