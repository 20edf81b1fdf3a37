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
//   RowState               begin(row), keep(k, p, raw), addSquares(k, values): registers or memory
//   state.rest()           of it what pass 2 needs: kept(k, p)
//   forEachPack(span, f)   f(k, p): p a pack of the span that is this thread's; k a compile-time register index
//   squares(state)         team-wide sum of squares in the order fixed for this kind of device; never in forEachPack
//   rowTeam()              what pass 2 needs: forEachPack, weight, quantizer
#pragma once

#include "kernels/pattern.h"

namespace fccl {

// Columns [col0, col0 + cols) of row `row`; col0 a multiple of 64 elements.
struct Span {
  int64_t row;
  int64_t col0;
  int64_t cols;
};

// Pass 2 of a row whose sum of squares is complete. What rowTeam() and the two rest() give is passed on as they give
// it: a team of GPU threads gives references to registers, the host team values, which its stores to memory cannot
// change.
template <class Pattern, class RowTeam, class KeptRow, class Outputs>
FCCL_ROW_FN void normalizeRow(RowTeam team, const RowArgs& a, KeptRow row, Outputs out, float squares) {
  const float scale = team.inverseRms(squares, a);
  const bool normOut = Pattern::normOut(a);
  const bool quant = Pattern::quant(a) != QuantKind::kNone;
  auto quantizer = team.quantizer(a, row, out);
  team.forEachPack(0, a.cols, [&](auto k, auto p) FCCL_TEAM_LAMBDA {
    const auto n = team.round(team.widen(row.kept(k, p)) * scale * team.weight(a, k, p));
    if (normOut) out.norm(p, n);
    if (quant) quantizer.put(k, p, n);
  });
  if (quant) quantizer.finish();
}

// sumOf(k, p): the sum over ranks of pack p, rounded. out: where the outputs of this row go.
template <class Pattern, class Team, class SumOf, class Outputs>
FCCL_TEAM_FN void rowEpilogue(Team& team, const RowArgs& a, const Span& span, typename Team::RowState& state,
                              Outputs& out, SumOf&& sumOf) {
  if constexpr (Pattern::kNorm) {
    if (span.col0 == 0) state.begin(span.row);
  }
  const auto residual = team.rowOf(a.residual, span.row);
  [[maybe_unused]] const bool addsResidual = Pattern::residual(a);
  team.forEachPack(span.col0, span.cols, [&](auto k, auto p) FCCL_TEAM_LAMBDA {
    auto v = sumOf(k, p);
    out.sum(p, v);
    if constexpr (Pattern::kMayAddResidual) {
      if (addsResidual) {
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
    normalizeRow<Pattern, decltype(team.rowTeam()), decltype(state.rest()), decltype(out.rest())>(
        team.rowTeam(), a, state.rest(), out.rest(), team.squares(state));
  }
}

}  // namespace fccl
