// UB: the caller's buffers lie in windows that all ranks have mapped, so nothing is staged.
//
// step        ONESHOT form (input in a window)           TWOSHOT form (plain; input and output in windows)
// 1 barrier   every rank's input is complete             the same, and nobody reads its output buffer any more
// 2 reduce    all rows, pulled from every rank           own shard, pulled from every rank
// 3 write     own outputs                                the shard into every rank's output
// 4 barrier   inputs may be overwritten                  the same, and outputs are complete
//
// bytes on the link per rank   (R - 1) * payload in      (R - 1) / R * payload in, the same out
#pragma once

#include "kernels/epilogue.h"

namespace fccl {

template <class Pattern, class Team>
FCCL_TEAM_FN void userBufferOneshot(Team& team, const RowArgs& a) {
  typename Team::RowState state(team);
  team.begin(a);
  team.barrier();
  if (team.failed()) return;
  for (int64_t row = 0; row < a.rows; row++) {
    auto from = team.windowRow(row);
    auto outputs = team.userOutputs(a, row);
    rowEpilogue<Pattern>(team, a, Span{row, 0, a.cols}, state, outputs,
                         [&](auto, auto p) FCCL_TEAM_LAMBDA { return from.sum(p); });
  }
  team.end(a);
  team.barrier();
}

template <class Pattern, class Team>
FCCL_TEAM_FN void userBufferTwoshot(Team& team, const RowArgs& a) {
  typename Team::RowState state(team);
  team.begin(a);
  team.barrier();
  if (team.failed()) return;
  const auto shard = team.windowShard(a);
  auto from = team.windowRow(0);
  auto outputs = team.windowOutputs(a);
  rowEpilogue<Pattern>(team, a, Span{0, shard.col0, shard.cols}, state, outputs,
                       [&](auto, auto p) FCCL_TEAM_LAMBDA { return from.sum(p); });
  team.end(a);
  team.barrier();
}

}  // namespace fccl
