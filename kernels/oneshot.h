// ONESHOT: every rank gets every rank's rows and reduces all of them. One text for both teams.
//
// step                who        waits for
// 1 send chunk i      every rank nothing: the slot is free, see below
// 2 open chunk i - L  every rank chunk i - L of every rank (flags: here; Lamport: word by word in step 3)
// 3 epilogue          every rank -
//
// bytes on the link per rank   (R - 1) * payload out and in
// local memory per rank        payload read, staged (once, or at each peer), (R - 1) * payload read, outputs
// buffers                      a ring of chunks (HOST) or three epochs (CUDA)
// synchronisation              none but the data
//
// Why the slot of step 1 is free on a ring of K slots: this rank has received chunk i - 1 - L of every rank (step 2 of
// the turn before). A rank sends chunk m only after it has consumed chunk m - 1 - L, so every rank has consumed chunk
// i - 2 - 2L of everybody, and with K >= 2L + 2 that includes what stood in the slot. Calls need no barrier: the chunk
// numbers go on, and a call ends with all chunks consumed.
#pragma once

#include "kernels/epilogue.h"

namespace fccl {

template <class Pattern, class Team>
FCCL_TEAM_FN void oneshot(Team& team, const RowArgs& a) {
  using Count = decltype(team.chunks(a));
  typename Team::RowState state(team);
  const auto chunks = team.chunks(a);  // CUDA: the rows of this block; HOST: all
  team.begin(a);
  for (Count i = 0; i < chunks + Team::kLookAhead; i++) {
    if (i < chunks) {
      const auto chunk = team.chunk(a, i);
      auto out = team.beginSend(Team::kReduceChannel, i);
      for (Count r = 0; r < chunk.rows; r++) {
        const auto input = team.rowOf(a.input, chunk.row0 + r);
        out.startRow(chunk, r);
        team.forEachPack(chunk.col0, chunk.cols, [&](auto k, auto p) FCCL_TEAM_LAMBDA {
          const auto raw = team.input(k, input, p);
          state.keepOwn(k, raw);
          out.put(p, raw);
        });
      }
      team.endSend(out);
    }
    if (i < Team::kLookAhead) continue;
    const auto chunk = team.chunk(a, i - Team::kLookAhead);
    auto from = team.open(Team::kReduceChannel, i - Team::kLookAhead);
    if (team.failed()) return;
    for (Count r = 0; r < chunk.rows; r++) {
      const Span span{chunk.row0 + r, chunk.col0, chunk.cols};
      const auto own = team.rowOf(a.input, span.row);
      auto outputs = team.userOutputs(a, span.row);
      from.startRow(chunk, r);
      rowEpilogue<Pattern>(team, a, span, state, outputs,
                           [&](auto k, auto p) FCCL_TEAM_LAMBDA { return from.sum(k, p, state.own(k, own, p)); });
    }
    team.close(from);
  }
  team.end(a);
}

}  // namespace fccl
