// What a fused pattern consists of. Only the norm is compiled in: the rest are facts of the call, whose tests are
// predicted or uniform, while an instantiation per pattern is not free. The host has one more for the most used
// pattern.
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

}  // namespace fccl
