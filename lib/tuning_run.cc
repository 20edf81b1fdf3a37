#include "lib/tuning_run.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/log.h"
#include "lib/asked_call.h"
#include "lib/validate.h"
#include "transport/siphash.h"
#include "tuner/chunking.h"
#include "tuner/patterns.h"
#include "tuner/strategies.h"

namespace fccl {
namespace {

constexpr size_t kMostCandidates = 8;
constexpr int kMostSets = 256;
constexpr size_t kAlignment = 256;
constexpr size_t kPlainUnit = 256;  // bytes that sizes near a crossover are multiples of

// What ranks tell each other, one row of figures each.
using Figures = std::array<double, 2 * kMostCandidates>;

size_t dataBytes(const fcclQuery_t& asked) {
  return static_cast<size_t>(asked.tokens * asked.hidden) * host::dtypeBytes(asked.dtype);
}

// The buffers of one call, one after the other.
class SetOfBuffers {
 public:
  SetOfBuffers(const fcclQuery_t& asked, char* start) : start_(start), traits_(traitsOf(asked)) {
    const size_t bytes = dataBytes(asked);
    args_.pattern = asked.pattern;
    args_.dtype = asked.dtype;
    args_.tokens = asked.tokens;
    args_.hidden = asked.hidden;
    args_.input = next(bytes);
    if (!traits_.norm) args_.reducedOut = next(bytes);
    if (traits_.norm) args_.weight = next(static_cast<size_t>(asked.hidden) * host::dtypeBytes(asked.dtype));
    if (traits_.residual) args_.residual = next(bytes);
    if (traits_.residual) args_.residualOut = next(bytes);
    if (traits_.normOut) args_.normOut = next(bytes);
    if (traits_.quant != QuantKind::kNone) args_.quantOut = next(static_cast<size_t>(asked.tokens * asked.hidden));
    if (traits_.quant == QuantKind::kFp8) args_.fp8DequantScale = reinterpret_cast<float*>(next(sizeof(float)));
    if (traits_.quant != QuantKind::kNvfp4) return;
    args_.nvfp4GlobalScale = reinterpret_cast<float*>(next(sizeof(float)));
    size_t scaleBytes = 0;
    (void)quantScaleBytes(asked.tokens, asked.hidden, asked.pattern, args_.scaleLayout, &scaleBytes);
    args_.scaleOut = next(scaleBytes);
  }

  size_t bytes() const { return used_; }
  const fcclFusedArgs_t& args() const { return args_; }

 private:
  static const PatternTraits& traitsOf(const fcclQuery_t& asked) {
    return kPatterns[static_cast<size_t>(asked.pattern)];
  }
  char* next(size_t bytes) {
    char* const at = start_ + used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }

  char* const start_;
  const PatternTraits& traits_;
  size_t used_ = 0;
  fcclFusedArgs_t args_ = FCCL_FUSED_ARGS_INITIALIZER;
};

size_t setBytes(const fcclQuery_t& asked) { return SetOfBuffers(asked, nullptr).bytes(); }

bool wantsWindows(const fcclQuery_t& asked) { return seriesOf(queryOf(asked).value()).windows; }

// The whole of what is asked, for ranks to compare. A struct may have padding.
uint64_t fingerprint(std::span<const fcclQuery_t> asked) {
  std::vector<int64_t> all;
  for (const fcclQuery_t& each : asked) {
    all.insert(all.end(),
               {each.pattern, each.dtype, each.op, each.tokens, each.hidden, each.inputInWindow, each.outputInWindow});
  }
  return sipHash24(Key128{}, all.data(), all.size() * sizeof(int64_t));
}

}  // namespace

Result<std::unique_ptr<TuningRun>> TuningRun::begin(Communicator& communicator, std::span<const fcclQuery_t> asked,
                                                    std::chrono::milliseconds budget) {
  std::unique_ptr<TuningRun> run(new TuningRun(communicator, asked, budget));
  FCCL_TRY_ASSIGN(const std::vector<uint64_t> all, communicator.bootstrap().exchange(fingerprint(asked)));
  const auto other = std::ranges::find_if(all, [&](uint64_t each) { return each != all.front(); });
  if (other != all.end()) {
    return failure(fcclInvalidUsage, "Rank 0 and rank {} tune different shapes; pass the same on every rank.",
                   other - all.begin());
  }
  if (const Status opened = communicator.bootstrap().agree(run->open()); !opened.ok()) {
    run.reset();
    FCCL_TRY(communicator.bootstrap().barrier());  // as in end()
    return opened;
  }
  return run;
}

TuningRun::TuningRun(Communicator& communicator, std::span<const fcclQuery_t> asked, std::chrono::milliseconds budget)
    : communicator_(communicator),
      asked_(asked.begin(), asked.end()),
      deadline_(std::chrono::steady_clock::now() + budget) {}

TuningRun::~TuningRun() {
  if (window_ != nullptr) communicator_.closeWindow(window_);
}

Status TuningRun::open() {
  FCCL_TRY_ASSIGN(bench_, communicator_.engine().makeBench(communicator_.facts()));
  // So many sets of buffers that they are in no cache any more when it is their turn again.
  scratchBytes_ = 2 * bench_->cacheBytes();
  for (const fcclQuery_t& asked : asked_) scratchBytes_ = std::max(scratchBytes_, setBytes(asked));
  FCCL_TRY_ASSIGN(scratch_, bench_->allocate(scratchBytes_));
  return {};
}

double TuningRun::microsecondsLeft() const {
  return std::chrono::duration<double, std::micro>(deadline_ - std::chrono::steady_clock::now()).count();
}

Result<bool> TuningRun::isTimeLeft() {
  FCCL_TRY_ASSIGN(const std::vector<double> left, communicator_.bootstrap().exchange(microsecondsLeft()));
  return left[0] > 0;
}

Status TuningRun::registerScratch() {
  FCCL_TRY_ASSIGN(window_, communicator_.openWindow(scratch_, scratchBytes_));
  return {};
}

Status TuningRun::deregisterScratch() {
  if (window_ == nullptr) return {};
  FCCL_TRY(communicator_.bootstrap().barrier());
  communicator_.closeWindow(window_);
  window_ = nullptr;
  return {};
}

Result<TuningTable> TuningRun::all(const TuningTable* known) {
  TuningTable results;
  std::vector<fcclQuery_t> in = asked_;
  const auto firstIn = std::ranges::stable_partition(in, [](const fcclQuery_t& q) { return !wantsWindows(q); }).begin();
  const std::vector<fcclQuery_t> outside(in.begin(), firstIn);
  in.erase(in.begin(), firstIn);
  FCCL_TRY(measureAll(outside, known, &results));
  if (in.empty()) return results;
  FCCL_TRY(registerScratch());
  FCCL_TRY(measureAll(in, known, &results));
  FCCL_TRY(deregisterScratch());
  return results;
}

Status TuningRun::measureAll(std::span<const fcclQuery_t> asked, const TuningTable* known, TuningTable* results) {
  TuningTable all = known != nullptr ? *known : TuningTable();
  std::map<TuningSeries, fcclQuery_t> firsts;
  const auto measureInto = [&](const fcclQuery_t& query, size_t toCome) -> Status {
    const Query shape = queryOf(query).value();
    const TuningSeries series = seriesOf(shape);
    if (all.at(series, tuningSize(shape)) != nullptr) return {};
    FCCL_TRY_ASSIGN(std::optional<TuningPoint> point,
                    measure(query, microsecondsLeft() / static_cast<double>(toCome + 2)));
    if (!point) return {};
    results->put(series, *point);
    all.put(series, std::move(*point));
    return {};
  };
  for (size_t i = 0; i < asked.size(); i++) {
    firsts.emplace(seriesOf(queryOf(asked[i]).value()), asked[i]);
    FCCL_TRY(measureInto(asked[i], asked.size() - i));
  }
  // Every turn halves the gaps; what there was no time for is not asked for again.
  constexpr int kTurns = 4;
  for (int turn = 0; turn < kTurns && leftOut_ == 0; turn++) {
    std::vector<fcclQuery_t> between;
    for (const auto& [series, first] : firsts) {
      const auto points = all.series().find(series);
      if (points == all.series().end()) continue;
      for (const int64_t size : sizesAtCrossovers(points->second)) {
        // What a file has may be larger than all that is asked for now.
        const fcclQuery_t query = resized(first, size);
        if (setBytes(query) <= scratchBytes_) between.push_back(query);
      }
    }
    if (between.empty()) break;
    for (size_t i = 0; i < between.size(); i++) FCCL_TRY(measureInto(between[i], between.size() - i));
  }
  return {};
}

Status TuningRun::end(const TuningTable& results) {
  // Giving GPU memory back waits for the GPU. Where ranks share one, a rank that already makes calls would wait there
  // for a rank that is still here.
  bench_.reset();
  FCCL_TRY(communicator_.bootstrap().barrier());
  communicator_.adopt(results);
  const std::string& path = communicator_.options().tuningFile;
  if (communicator_.rank() != 0 || path.empty() || results.points() == 0) return {};
  // A failure to save what was measured is no failure to tune: it is in use already.
  const Status saved = saveTuning(path, communicator_.tuningMachine(), results);
  if (!saved.ok()) FCCL_WARN("What was tuned is not kept, since {}", saved.message());
  return {};
}

fcclQuery_t TuningRun::resized(const fcclQuery_t& asked, int64_t size) {
  fcclQuery_t query = asked;
  if (kPatterns[static_cast<size_t>(asked.pattern)].norm) {
    query.tokens = size;
  } else {
    const auto width = static_cast<int64_t>(host::dtypeBytes(asked.dtype));
    query.tokens = 1;
    query.hidden =
        size <= int64_t{kPlainUnit} ? size / width : size / int64_t{kPlainUnit} * int64_t{kPlainUnit} / width;
    query.hidden = std::max<int64_t>(1, query.hidden);
  }
  return query;
}

Status TuningRun::callOn(const fcclQuery_t& asked, fcclStrategy_t strategy, fcclStream_t stream, int set) {
  const SetOfBuffers buffers(asked, scratch_ + static_cast<size_t>(set) * setBytes(asked));
  const fcclFusedArgs_t& args = buffers.args();
  CheckedCall call;
  if (asked.pattern == fcclPatternAllReduce) {
    FCCL_TRY(checkAllReduce(args.input, args.reducedOut, static_cast<size_t>(asked.tokens * asked.hidden), asked.dtype,
                            asked.op, stream, communicator_.deviceType(), &call));
  } else {
    FCCL_TRY(checkAllReduceFused(&args, stream, communicator_.caller(), &call));
  }
  call.strategy = strategy;
  return communicator_.run(call);
}

Bench::Call TuningRun::callOf(const fcclQuery_t& asked, fcclStrategy_t strategy) {
  return [this, asked, strategy](fcclStream_t stream, int set) { return callOn(asked, strategy, stream, set); };
}

Status TuningRun::together(const Status& mine) {
  // A rank that cannot go on must not leave the others in calls that wait for it.
  const Status given = mine.ok() ? communicator_.failed() : communicator_.giveUp(mine);
  const Status agreed = communicator_.bootstrap().agree(given);
  return given.ok() ? agreed : given;
}

Result<TuningEffort> TuningRun::tryOut(const fcclQuery_t& asked, std::vector<Candidate>* candidates, double share) {
  const auto prepare = [&]() -> Status {
    for (Candidate& candidate : *candidates) {
      FCCL_TRY_ASSIGN(candidate.warm, bench_->add(callOf(asked, candidate.row->id), 1, 1));
    }
    return {};
  };
  FCCL_TRY(together(prepare()));
  double slowest = 0;
  const auto run = [&]() -> Status {
    for (const Candidate& candidate : *candidates) {
      FCCL_TRY_ASSIGN(const double time, bench_->run(candidate.warm));
      slowest = std::max(slowest, time);
    }
    return {};
  };
  FCCL_TRY(together(run()));
  struct Told {
    double slowest;
    double share;
    double left;
  };
  FCCL_TRY_ASSIGN(const std::vector<Told> told,
                  communicator_.bootstrap().exchange(Told{slowest, share, microsecondsLeft()}));
  bench_->clear();
  slowest = std::ranges::max_element(told, {}, &Told::slowest)->slowest;
  return planEffort(slowest, candidates->size(), told[0].share, told[0].left);
}

Status TuningRun::addBursts(const fcclQuery_t& asked, const TuningEffort& effort, std::vector<Candidate>* candidates) {
  const size_t fit = scratchBytes_ / setBytes(asked);
  const int sets = static_cast<int>(std::min<size_t>(fit, kMostSets));
  for (Candidate& candidate : *candidates) {
    const Bench::Call call = callOf(asked, candidate.row->id);
    FCCL_TRY_ASSIGN(candidate.warm, bench_->add(call, effort.calls, 1));
    candidate.cold = candidate.warm;
    if (sets == 1) continue;
    FCCL_TRY_ASSIGN(candidate.cold, bench_->add(call, effort.calls, sets));
  }
  return {};
}

Status TuningRun::runRound(size_t first, std::vector<Candidate>* candidates) {
  for (size_t i = 0; i < candidates->size(); i++) {
    Candidate& candidate = (*candidates)[(i + first) % candidates->size()];
    FCCL_TRY_ASSIGN(const double warm, bench_->run(candidate.warm));
    candidate.warmTimes.push_back(warm);
    if (candidate.cold == candidate.warm) continue;
    FCCL_TRY_ASSIGN(const double cold, bench_->run(candidate.cold));
    candidate.coldTimes.push_back(cold);
  }
  return {};
}

// Strategies take turns, and begin in turn, so that what drifts is the same for all.
Status TuningRun::runRounds(const TuningEffort& effort, std::vector<Candidate>* candidates) {
  FCCL_TRY_ASSIGN(const double flag, communicator_.flagNanoseconds());
  SteadyRounds steady(effort.rounds, flag);
  for (int round = 0; round < effort.rounds;) {
    FCCL_TRY(runRound(static_cast<size_t>(round), candidates));
    FCCL_TRY_ASSIGN(const double after, communicator_.flagNanoseconds());
    if (steady.counts(after)) {
      round++;
      continue;
    }
    for (Candidate& candidate : *candidates) {
      candidate.warmTimes.pop_back();
      if (candidate.cold != candidate.warm) candidate.coldTimes.pop_back();
    }
  }
  return {};
}

Result<std::optional<TuningPoint>> TuningRun::measure(const fcclQuery_t& asked, double share) {
  FCCL_TRY_ASSIGN(const Query query, queryOf(asked));
  Facts untuned = communicator_.facts();
  untuned.tuned = nullptr;
  std::vector<Candidate> candidates;
  for (const StrategyRow* row : tuningCandidates(query, untuned)) {
    if (candidates.size() + 1 < kMostCandidates) candidates.push_back({.row = row});
  }
  // To compare with; see TuningPoint.
  const bool withNccl = !candidates.empty() && kNcclRow.eligible(query, untuned).empty();
  if (withNccl) candidates.push_back({.row = &kNcclRow});
  if (candidates.size() < 2) return std::optional<TuningPoint>();

  FCCL_TRY_ASSIGN(const bool timeLeft, isTimeLeft());
  TuningEffort effort;
  if (timeLeft) {
    FCCL_TRY_ASSIGN(effort, tryOut(asked, &candidates, share));
  }
  if (effort.rounds == 0) {
    leftOut_++;
    return std::optional<TuningPoint>();
  }
  FCCL_TRY(together(addBursts(asked, effort, &candidates)));
  FCCL_TRY(together(runRounds(effort, &candidates)));
  Figures mine{};
  for (size_t i = 0; i < candidates.size(); i++) {
    mine[2 * i] = medianOf(candidates[i].warmTimes);
    mine[2 * i + 1] = candidates[i].coldTimes.empty() ? mine[2 * i] : medianOf(candidates[i].coldTimes);
  }
  FCCL_TRY_ASSIGN(const std::vector<Figures> all, communicator_.bootstrap().exchange(mine));
  bench_->clear();

  TuningPoint point;
  point.size = tuningSize(query);
  for (size_t i = 0; i < candidates.size(); i++) {
    TuningTime time{candidates[i].row->id, 0, 0};
    for (const Figures& figures : all) {
      time.warm = std::max(time.warm, figures[2 * i]);
      time.cold = std::max(time.cold, figures[2 * i + 1]);
    }
    point.times.push_back(time);
  }
  point.choice = chooseByTimes(point.times, chooseStrategy(query, untuned).id);
  return std::optional<TuningPoint>(std::move(point));
}

}  // namespace fccl
