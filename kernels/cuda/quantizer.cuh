// FP8 and NVFP4 codes of the packs in registers: the rules of kernels/formats.h, exact on every architecture.
#pragma once

#include "kernels/call.h"
#include "kernels/cuda/packs.cuh"
#include "kernels/formats.h"

namespace fccl::cuda {

template <class D>
class PackQuantizer {
 public:
  FCCL_TEAM_FN PackQuantizer(const RowArgs& a, int64_t row)
      : a_(a),
        row_(row),
        quant_(a.quantOut + row * (a.quant == QuantKind::kFp8 ? a.cols : a.cols / 2)),
        scale_(a.quant == QuantKind::kNone ? 0.0f : *a.quantScale) {
    if (a.quant == QuantKind::kFp8) scale_ = __fdiv_rn(1.0f, scale_);
  }

  template <class K>
  FCCL_TEAM_FN void put(K, Pack p, Raw n) {
    if (a_.quant == QuantKind::kFp8) {
      fp8(p, D::widen(n));
    } else {
      nvfp4(p, D::widen(n));
    }
  }
  FCCL_TEAM_FN void finish() {}

 private:
  FCCL_TEAM_FN void fp8(Pack p, Floats<D::kElements> f) {
#pragma unroll
    for (int i = 0; i < D::kElements; i++) {
      if (i < p.elements) quant_[p.index * D::kElements + i] = e4m3FromFloat(__fmul_rn(f.v[i], scale_));
    }
  }

  // The lanes that share a block are neighbours, and all of them are here or none: rows are multiples of a block.
  FCCL_TEAM_FN void nvfp4(Pack p, Floats<D::kElements> f) {
    constexpr int kLanes = kNvfp4Block / D::kElements;
    const unsigned lane = threadIdx.x % 32;
    const unsigned together = ((1u << kLanes) - 1u) << (lane / kLanes * kLanes);
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < D::kElements; i++) amax = fmaxf(amax, fabsf(f.v[i]));  // fmaxf passes over NaN
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) amax = fmaxf(amax, __shfl_xor_sync(together, amax, step));
    const uint8_t byte = nvfp4ScaleByte(scale_, amax);
    const float multiplier = nvfp4Multiplier(scale_, byte);
    const int64_t block = p.index / kLanes;
    if (p.index % kLanes == 0) a_.scaleOut[scaleOffset(a_.scaleLayout, row_, block, a_.cols / kNvfp4Block)] = byte;
#pragma unroll
    for (int i = 0; i < D::kElements; i += 2) {
      const unsigned low = byte == 0 ? 0u : e2m1FromFloat(__fmul_rn(f.v[i], multiplier));
      const unsigned high = byte == 0 ? 0u : e2m1FromFloat(__fmul_rn(f.v[i + 1], multiplier));
      quant_[(p.index * D::kElements + i) / 2] = static_cast<uint8_t>(low | high << 4);
    }
  }

  const RowArgs& a_;
  int64_t row_;
  uint8_t* quant_;
  float scale_;
};

}  // namespace fccl::cuda
