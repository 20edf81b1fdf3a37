// Times the variants of a case against each other, in rounds.
#pragma once

#include <vector>

#include "tests/perf/cases.h"
#include "tests/perf/ranks.h"
#include "tests/perf/timing.h"
#include "tests/perf/variants.h"

namespace fccl::perf {

struct MeasureOptions {
  int iters = 0;   // calls per round; 0: as many as fill about 10 ms, for each variant
  int warmup = 5;  // calls of each variant before anything is timed
  int rounds = 15;
  bool check = false;
  int repeatChanged = 0;  // measure again, up to so many times, where the flag ping changed meanwhile
};

// One case's result, the same on every rank.
struct Row {
  Case c;
  PingPair ping;
  int attempts = 1;
  std::vector<Series> series;  // one per variant, in their order
};

// Collective. In a round each variant does its calls back to back, each call with its input written afresh (the
// producer's time is inside all figures); a round's time is the slowest rank's mean per call. Which variant begins
// changes from round to round. The 99th percentile is of single calls, timed apart so that the clock costs a round
// nothing.
Row measureCase(Ranks& ranks, const Case& c, Variants& variants, const MeasureOptions& options);

}  // namespace fccl::perf
