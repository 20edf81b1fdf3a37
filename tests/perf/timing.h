// The statistics of a measurement, apart from anything that takes time.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace fccl::perf {

// Nearest rank: the smallest sample that at least `fraction` of all samples do not exceed. NaN without samples.
double percentile(std::span<const double> samples, double fraction);
double median(std::span<const double> samples);  // of an even number: the mean of the middle two
double smallest(std::span<const double> samples);

// Times of one variant of a case, microseconds per call, each the slowest rank's.
struct Series {
  std::string variant;  // "fccl", "unfused", "mpi", "mpi-fp32", "mpi-op"
  bool inPlace = false;
  int iters = 0;                // calls per round
  std::vector<double> roundUs;  // mean over the calls of a round
  std::vector<double> callUs;   // single calls, timed apart from the rounds
  long long wrong = -1;         // elements that differ from the reference, over all ranks; -1: not checked
  std::string chosen;           // of FCCL's own: the strategy that it ran with, "ONESHOT"

  double medianUs() const { return median(roundUs); }
  double minUs() const { return smallest(roundUs); }
  double p99Us() const { return percentile(callUs, 0.99); }
};

// GB/s (1e9) as nccl-tests defines them for an all-reduce.
struct Bandwidth {
  double algorithm;
  double bus;
};
Bandwidth allReduceBandwidth(size_t bytes, double microseconds, int ranks);

// How far apart the two ranks' cores are, from the one-way time of a flag.
// kOneCore: the two take turns on one core, so that a flag waits for the scheduler.
enum class Distance { kNone, kNear, kBetween, kFar, kOneCore };
Distance distanceOf(double pingNs);
const char* nameOf(Distance distance);

// The flag times around a measurement. NaN with one rank.
struct PingPair {
  double beforeNs = 0;
  double afterNs = 0;

  // True where they differ by more than 1.5x: the machine changed under the measurement.
  bool changed() const;
  // "near 55/58 ns", "state changed 55/240 ns", "-"
  std::string text() const;
};

}  // namespace fccl::perf
