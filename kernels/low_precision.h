// LOWPRECISION: TWOSHOT with FP8 on the wire (fp8_wire.h). One text for both teams.
//
// step                  who        waits for
// 1 send chunk i        every rank nothing: slot free, as in twoshot.h. To each owner its part
// 2 reduce chunk i - 1  owner      that part of every rank; the sums, in fp32 and in rank order, go to all
// 3 finish chunk i - 2  every rank the sums of all owners; the epilogue of all rows
//
// bytes on the link per rank   (R - 1) / R * elements * 33/32 out and in, twice
// buffers                      one ring for each half
// synchronisation              none but the data
//
// An owner takes its own sums from its slot as the others do, so all ranks have the same bits. A rank's input is
// rounded to FP8 unless the rank owns it, a sum is once more.
#pragma once

#include "kernels/epilogue.h"

namespace fccl {

template <class Pattern, class Team>
FCCL_TEAM_FN void lowPrecision(Team& team, const RowArgs& a) {
  using Count = decltype(team.chunks(a));
  typename Team::RowState state(team);
  const auto chunks = team.sharedChunks(a);
  team.begin(a);
  for (Count i = 0; i < chunks + 2; i++) {
    if (i < chunks) {
      auto out = team.beginSend(Team::kReduceChannel, i);
      for (int owner = 0; owner < team.ranks(); owner++) {
        if (owner == team.rank()) continue;
        const auto part = team.part(a, i, owner);
        for (Count r = 0; r < part.rows; r++) {
          const auto input = team.rowOf(a.input, part.row0 + r);
          out.startRowFor(owner, part, r);
          team.forEachPack(part.col0, part.cols, [&](auto k, auto p) FCCL_TEAM_LAMBDA {
            out.putFor(owner, p, Team::widen(team.input(k, input, p)));
          });
          out.endRow();
        }
      }
      team.endSend(out);
    }
    if (i >= 1 && i - 1 < chunks) {
      auto from = team.open(Team::kReduceChannel, i - 1);
      if (team.failed()) return;
      auto out = team.beginSend(Team::kGatherChannel, i - 1);
      const auto part = team.part(a, i - 1, team.rank());
      for (Count r = 0; r < part.rows; r++) {
        const auto own = team.rowOf(a.input, part.row0 + r);
        from.startRow(team.rank(), part, r);
        out.startRow(part, r);
        team.forEachPack(part.col0, part.cols, [&](auto k, auto p) FCCL_TEAM_LAMBDA {
          out.put(p, from.sum(p, Team::widen(team.input(k, own, p))));
        });
        out.endRow();
      }
      team.close(from);
      team.endSend(out);
    }
    if (i >= 2) {
      auto from = team.open(Team::kGatherChannel, i - 2);
      if (team.failed()) return;
      for (int owner = 0; owner < team.ranks(); owner++) {
        const auto part = team.part(a, i - 2, owner);
        for (Count r = 0; r < part.rows; r++) {
          const Span span{part.row0 + r, part.col0, part.cols};
          auto outputs = team.userOutputs(a, span.row);
          from.startRow(owner, part, r);
          rowEpilogue<Pattern>(team, a, span, state, outputs,
                               [&](auto, auto p) FCCL_TEAM_LAMBDA { return Team::round(from.take(owner, p)); });
        }
      }
      team.close(from);
    }
  }
  team.end(a);
}

}  // namespace fccl
