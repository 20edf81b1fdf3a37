// What was measured of strategies, and what AUTO takes because of it. A value without a clock or a file.
#pragma once

#include <compare>
#include <map>
#include <vector>

#include "tuner/registry.h"

namespace fccl {

// Calls that differ in their size alone; sums and other reductions are one.
struct TuningSeries {
  fcclFusionPattern_t pattern = fcclPatternAllReduce;
  fcclDataType_t dtype = fcclBfloat16;
  int64_t hidden = 0;    // columns of a row that is normalized; 0 without a norm
  bool windows = false;  // the buffers lie in windows, as UB needs it
  auto operator<=>(const TuningSeries&) const = default;
};
TuningSeries seriesOf(const Query& query);
// Rows; bytes of a call without norm.
int64_t tuningSize(const Query& query);

// Microseconds of one call, the slowest rank's median: on the same buffers again and again, and on buffers that are in
// no cache.
struct TuningTime {
  fcclStrategy_t strategy = fcclStrategyAuto;
  double warm = 0;
  double cold = 0;
  double mean() const { return (warm + cold) / 2; }
  bool operator==(const TuningTime&) const = default;
};

struct TuningPoint {
  int64_t size = 1;
  fcclStrategy_t choice = fcclStrategyAuto;  // of the exact class
  std::vector<TuningTime> times;             // NCCL's may be among them, which is compared with and never chosen
  // 0 where it was not timed.
  double mean(fcclStrategy_t strategy) const;
  bool operator==(const TuningPoint&) const = default;
};

class TuningTable {
 public:
  using Points = std::map<int64_t, TuningPoint>;  // by size

  // The measured point that a size counts to: the nearest by ratio, at most a factor of two away; of two that are
  // equally near, the smaller. So points at powers of two are buckets around them, and more points near a crossover
  // make finer ones. NULL where there is none.
  const TuningPoint* find(const TuningSeries& series, int64_t size) const;
  const TuningPoint* at(const TuningSeries& series, int64_t size) const;

  void put(const TuningSeries& series, TuningPoint point);
  // Points of `newer` take the place of those of their size.
  void merge(const TuningTable& newer);

  const std::map<TuningSeries, Points>& series() const { return series_; }
  size_t points() const;
  bool operator==(const TuningTable&) const = default;

 private:
  std::map<TuningSeries, Points> series_;
};

// Whether AUTO, and so the tuner, may take a strategy: those of one numerics class, whose bits are the same as each
// other's for every number of tokens.
bool isExact(fcclStrategy_t strategy);

// The eligible strategies that AUTO may take, without those that would do the call as one before them does.
std::vector<const StrategyRow*> tuningCandidates(const Query& query, const Facts& facts);

// The fastest; `untuned`, what AUTO takes without measurements, where it is within 1 % of that, so that noise settles
// nothing. `times` is not empty.
fcclStrategy_t chooseByTimes(const std::vector<TuningTime>& times, fcclStrategy_t untuned);

// Sizes that should be measured next: between neighbours that choose differently, until they are within 25 % of each
// other, where the wrong choice costs more than 3 %.
std::vector<int64_t> sizesAtCrossovers(const TuningTable::Points& points);

// How often the calls of one point are made. rounds 0: there is no time for it.
struct TuningEffort {
  int calls = 0;  // one after the other, per strategy, cache state and round
  int rounds = 0;
};
// `slowest`: microseconds of a call of the slowest strategy. `share`, `left`: microseconds that this point should take,
// and that there are.
TuningEffort planEffort(double slowest, size_t candidates, double share, double left);

double medianOf(std::vector<double> samples);

// Which rounds of measurements count on HOST. While two ranks share a core, or have moved to others, times say nothing
// about what comes; a flag between the ranks, timed before and after each round, tells. Rounds that do not count are
// made again, as long as that does not double their number.
class SteadyRounds {
 public:
  // `flag`: one-way nanoseconds before the first round; 0 in all of them: every round counts.
  SteadyRounds(int rounds, double flag) : again_(rounds), before_(flag), least_(flag) {}
  // Of the round that has ended; `flag`: after it.
  bool counts(double flag);

 private:
  int again_;
  double before_;
  double least_;
};

}  // namespace fccl
