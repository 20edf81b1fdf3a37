// UB: the caller's buffers lie in windows that all ranks have mapped, so nothing is staged. One text for both teams.
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
  using Count = decltype(team.chunks(a));
  typename Team::RowState state(team);
  const auto chunks = team.chunks(a);  // CUDA: the rows of this block; HOST: all
  team.begin(a);
  team.barrier();
  if (team.failed()) return;
  for (Count i = 0; i < chunks; i++) {
    const auto chunk = team.chunk(a, i);
    for (Count r = 0; r < chunk.rows; r++) {
      const Span span{chunk.row0 + r, chunk.col0, chunk.cols};
      auto from = team.windowRow(span);
      auto outputs = team.userOutputs(a, span.row);
      rowEpilogue<Pattern>(team, a, span, state, outputs,
                           [&](auto k, auto p) FCCL_TEAM_LAMBDA { return from.sum(k, p); });
    }
  }
  team.end(a);
  team.barrier();
}

template <class Pattern, class Team>
FCCL_TEAM_FN void userBufferTwoshot(Team& team, const RowArgs& a) {
  using Count = decltype(team.chunks(a));
  typename Team::RowState state(team);
  const auto chunks = team.sharedChunks(a);  // CUDA: those of this block; HOST: the shard in one
  team.begin(a);
  team.barrier();
  if (team.failed()) return;
  auto outputs = team.windowOutputs(a);
  for (Count i = 0; i < chunks; i++) {
    const auto shard = team.part(a, i, team.rank());
    for (Count r = 0; r < shard.rows; r++) {
      const Span span{shard.row0 + r, shard.col0, shard.cols};
      auto from = team.windowRow(span);
      rowEpilogue<Pattern>(team, a, span, state, outputs,
                           [&](auto k, auto p) FCCL_TEAM_LAMBDA { return from.sum(k, p); });
    }
  }
  team.end(a);
  team.barrier();
}

}  // namespace fccl
