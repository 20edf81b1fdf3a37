// What a fused pattern consists of, as compile-time facts (CUDA: one kernel per pattern) or as facts of the call (HOST:
// one kernel with and one without norm; a test per pack is free there, an instantiation per pattern is not).
#pragma once

#include "kernels/call.h"
#include "kernels/team_macros.h"

namespace fccl {

template <bool norm>
struct RuntimePattern {
  static constexpr bool kNorm = norm;
  static constexpr bool kMayAddResidual = norm;
  static FCCL_BOTH_FN bool residual(const RowArgs& a) { return a.residual != nullptr; }
  static FCCL_BOTH_FN bool normOut(const RowArgs& a) { return a.normOut != nullptr; }
  static FCCL_BOTH_FN QuantKind quant(const RowArgs& a) { return a.quant; }
};

template <bool hasResidual, bool norm, bool hasNormOut, QuantKind quantKind>
struct StaticPattern {
  static constexpr bool kNorm = norm;
  static constexpr bool kMayAddResidual = hasResidual;
  static constexpr FCCL_BOTH_FN bool residual(const RowArgs&) { return hasResidual; }
  static constexpr FCCL_BOTH_FN bool normOut(const RowArgs&) { return hasNormOut; }
  static constexpr FCCL_BOTH_FN QuantKind quant(const RowArgs&) { return quantKind; }
};

}  // namespace fccl
