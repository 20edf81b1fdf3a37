// TWOSHOT: every rank reduces its share, then the shares are gathered. One text for both teams.
//
// step                  who        waits for
// 1 send chunk i        every rank nothing: slot free, see below. To each owner its part
// 2 reduce chunk i - 1  owner      that part of every rank; epilogue of the own rows; sends what is gathered
// 3 gather chunk i - 2  every rank the parts of all owners
//
// bytes on the link per rank   (R - 1) / R * payload out and in, twice; the second time the pattern's outputs (wire
//                              kFlags: the owner does the epilogue) or the sums (kLamport: every rank does)
// buffers                      one ring for each half
// synchronisation              none but the data
//
// Owners: whole rows, contiguous ranges of the call, the first rows % R owners one more; a plain call is one row, and
// each chunk of its columns is split evenly.
//
// Why slots are free, ring of 4 per half. Step 1 of chunk i overwrites chunk i - 4: step 3 of the turn before received
// the gathered chunk i - 3 of every owner, which an owner sends after its step 2 of that chunk. Step 2 sends gather
// chunk i - 1 over i - 5: it has just received chunk i - 1 of every rank, which a rank sends (step 1) after its step 3
// of chunk i - 4. An owner without rows in a chunk sends none of it in wire kLamport, and nobody's slot there is used.
#pragma once

#include "kernels/epilogue.h"

namespace fccl {

template <class Pattern, class Team>
FCCL_TEAM_FN void twoshot(Team& team, const RowArgs& a) {
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
          team.forEachPack(part.col0, part.cols,
                           [&](auto k, auto p) FCCL_TEAM_LAMBDA { out.putFor(owner, p, team.input(k, input, p)); });
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
        const Span span{part.row0 + r, part.col0, part.cols};
        const auto own = team.rowOf(a.input, span.row);
        auto outputs = team.gatherOutputs(a, out, part, r);
        from.startRow(part, r);
        rowEpilogue<Pattern>(team, a, span, state, outputs,
                             [&](auto k, auto p) FCCL_TEAM_LAMBDA { return from.sum(k, p, team.input(k, own, p)); });
      }
      team.close(from);
      team.endSend(out);
    }
    if (i >= 2) {
      auto from = team.open(Team::kGatherChannel, i - 2);
      if (team.failed()) return;
      for (int owner = 0; owner < team.ranks(); owner++) {
        if (owner == team.rank()) continue;
        const auto part = team.part(a, i - 2, owner);
        for (Count r = 0; r < part.rows; r++) {
          if constexpr (Team::kGathersSums) {
            const Span span{part.row0 + r, part.col0, part.cols};
            auto outputs = team.userOutputs(a, span.row);
            from.startGathered(owner, part, r);
            rowEpilogue<Pattern>(team, a, span, state, outputs, [&](auto k, auto p) FCCL_TEAM_LAMBDA {
              return Team::round(Team::widen(from.gathered(k, p)));
            });
          } else {
            team.copyGathered(a, from, owner, part, r);
          }
        }
      }
      team.close(from);
    }
  }
  team.end(a);
}

}  // namespace fccl
