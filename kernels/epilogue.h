// What happens to one reduced row, in every strategy and on every device (SEMANTICS part I):
//   pass 1   s = round(sum over ranks)                        -> reducedOut
//            r = round(s + residual), else r = s              -> residualOut; r is kept, its squares are summed
//   pass 2   n = round(r * 1/sqrt(mean(r^2) + eps) * (bias + weight))  -> normOut; quantized from the rounded n
// The sum starts from +0, so s is never -0 (sums of fp16, bf16 and fp32 values cannot underflow to zero), whatever a
// wire did to the sign of a zero on the way.
//
// A Team is who works on the row: one CPU thread with vector registers, or a block or cluster of GPU threads.
//   Raw, Values, Rounded   a pack as it is stored; in fp32; rounded to the data type but not yet packed
//   add(rounded, raw)      their sum in fp32, rounded
//   RowState               begin(), keep(k, p, raw), kept(k, p), addSquares(k, values): registers or a scratch row
//   forEachPack(span, f)   f(k, p): p a pack of the span that is this thread's; k a compile-time register index
//   squares(state)         team-wide sum of squares in the order fixed for this kind of device. Never inside
//   forEachPack. rowTeam()              what pass 2 needs: forEachPack, weight, quantizer
#pragma once

#include "kernels/pattern.h"

namespace fccl {

// Columns [col0, col0 + cols) of row `row`; col0 a multiple of 64 elements.
struct Span {
  int64_t row;
  int64_t col0;
  int64_t cols;
};

// Pass 2 of a row whose sum of squares is complete. `team` is what pass 2 needs of a Team: its packs.
template <class Pattern, class RowTeam, class RowState, class Outputs>
FCCL_ROW_FN void normalizeRow(const RowTeam& team, const RowArgs& a, RowState& state, Outputs& out, float squares) {
  const float scale = team.inverseRms(squares, a);
  auto quantizer = team.quantizer(a, state, out);
  team.forEachPack(0, a.cols, [&](auto k, auto p) FCCL_TEAM_LAMBDA {
    const auto n = RowTeam::round(RowTeam::widen(state.kept(k, p)) * scale * team.weight(a, k, p));
    if (Pattern::normOut(a)) out.norm(p, n);
    if (Pattern::quant(a) != QuantKind::kNone) quantizer.put(k, p, n);
  });
  if (Pattern::quant(a) != QuantKind::kNone) quantizer.finish();
}

// sumOf(k, p): the sum over ranks of pack p, rounded. out: where the outputs of this row go.
template <class Pattern, class Team, class SumOf, class Outputs>
FCCL_TEAM_FN void rowEpilogue(Team& team, const RowArgs& a, const Span& span, typename Team::RowState& state,
                              Outputs& out, SumOf&& sumOf) {
  if constexpr (Pattern::kNorm) {
    if (span.col0 == 0) state.begin();
  }
  const auto residual = team.rowOf(a.residual, span.row);
  team.forEachPack(span.col0, span.cols, [&](auto k, auto p) FCCL_TEAM_LAMBDA {
    auto v = sumOf(k, p);
    out.sum(p, v);
    if constexpr (Pattern::kMayAddResidual) {
      if (Pattern::residual(a)) {
        v = Team::add(v, team.residual(k, residual, p));
        out.residual(p, v);
      }
    }
    if constexpr (Pattern::kNorm) {
      state.keep(k, p, v.narrow());
      state.addSquares(k, v.widen());
    }
  });
  if constexpr (Pattern::kNorm) {
    if (!team.endsRow(a, span)) return;  // the row goes on in the next chunk
    normalizeRow<Pattern>(team.rowTeam(), a, state.rest(), out.rest(), team.squares(state));
  }
}

}  // namespace fccl
