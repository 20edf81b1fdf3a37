// Measuring what strategies take on a communicator: real calls with scratch data, the same on all ranks.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>

#include "lib/bench.h"
#include "lib/communicator.h"
#include "tuner/tuning_table.h"

namespace fccl {

// All of it is collective: all ranks make the same calls with the same queries, and get the same answers. An error of
// one rank is an error of all; where a call was under way, it has ended the use of the communicator.
class TuningRun {
 public:
  // The queries are right by themselves. `budget`: rank 0's counts.
  static Result<std::unique_ptr<TuningRun>> begin(Communicator& communicator, std::span<const fcclQuery_t> asked,
                                                  std::chrono::milliseconds budget);
  ~TuningRun();

  // Measures all that were asked for and `known` has not, then the crossovers between them, while there is time.
  Result<TuningTable> all(const TuningTable* known);

  // One call, which must not be larger than those that were asked for. Nothing where there is no time left for it, or
  // nothing to choose. `share`: microseconds that it should take.
  Result<std::optional<TuningPoint>> measure(const fcclQuery_t& asked, double share);

  // The end of a run that has gone well. AUTO takes the results from now on, on all ranks alike, and rank 0 adds them
  // to its tuning file.
  Status end(const TuningTable& results);

  // The query of the same kind with as many tokens, or without a norm, bytes.
  static fcclQuery_t resized(const fcclQuery_t& asked, int64_t size);

  // How many were not measured for want of time.
  int leftOut() const { return leftOut_; }

 private:
  struct Candidate {
    const StrategyRow* row;
    int warm = 0;  // numbers of bursts
    int cold = 0;
    std::vector<double> warmTimes;
    std::vector<double> coldTimes;
  };

  TuningRun(Communicator& communicator, std::span<const fcclQuery_t> asked, std::chrono::milliseconds budget);

  Status open();
  // From now on the scratch memory is a window, or not any more. Collective.
  Status registerScratch();
  Status deregisterScratch();
  Status measureAll(std::span<const fcclQuery_t> asked, const TuningTable* known, TuningTable* results);

  Bench::Call callOf(const fcclQuery_t& asked, fcclStrategy_t strategy);
  Status callOn(const fcclQuery_t& asked, fcclStrategy_t strategy, fcclStream_t stream, int set);
  // Collective: what `mine` becomes when a rank could not do its part.
  Status together(const Status& mine);
  Result<TuningEffort> tryOut(const fcclQuery_t& asked, std::vector<Candidate>* candidates, double share);
  Status addBursts(const fcclQuery_t& asked, const TuningEffort& effort, std::vector<Candidate>* candidates);
  // `first`: the candidate that begins.
  Status runRound(size_t first, std::vector<Candidate>* candidates);
  Status runRounds(const TuningEffort& effort, std::vector<Candidate>* candidates);
  double microsecondsLeft() const;
  Result<bool> isTimeLeft();

  Communicator& communicator_;
  const std::vector<fcclQuery_t> asked_;
  const std::chrono::steady_clock::time_point deadline_;
  std::unique_ptr<Bench> bench_;
  char* scratch_ = nullptr;
  size_t scratchBytes_ = 0;
  fcclWindow_t window_ = nullptr;
  int leftOut_ = 0;
};

}  // namespace fccl
