#include "tuner/tuning_table.h"

#include <algorithm>
#include <cmath>

#include "tuner/chunking.h"
#include "tuner/strategies.h"

namespace fccl {
namespace {

constexpr double kTie = 1.01;
constexpr double kHarmless = 1.03;

bool samePlan(const Plan& a, const Plan& b) {
  return a.protocol == b.protocol && a.wire == b.wire && a.kernel == b.kernel &&
         a.shape.rowsPerChunk == b.shape.rowsPerChunk && a.shape.colsPerChunk == b.shape.colsPerChunk;
}

// What taking the other's choice would cost at `point`, as a ratio; 1 where the other was not timed there.
double costOf(const TuningPoint& point, fcclStrategy_t other) {
  const double own = point.mean(point.choice);
  return own > 0 ? point.mean(other) / own : 1.0;
}

}  // namespace

TuningSeries seriesOf(const Query& query) {
  TuningSeries series;
  series.pattern = query.pattern;
  series.dtype = query.dtype;
  series.hidden = query.norm ? query.cols : 0;
  series.windows = query.inputInWindow && (query.norm || query.outputInWindow);
  return series;
}

int64_t tuningSize(const Query& query) { return query.norm ? query.rows : static_cast<int64_t>(payloadBytes(query)); }

double TuningPoint::mean(fcclStrategy_t strategy) const {
  const auto found = std::ranges::find(times, strategy, &TuningTime::strategy);
  return found == times.end() ? 0.0 : found->mean();
}

const TuningPoint* TuningTable::find(const TuningSeries& series, int64_t size) const {
  const auto found = series_.find(series);
  if (found == series_.end() || size <= 0) return nullptr;
  const Points& points = found->second;
  const auto above = points.lower_bound(size);
  const TuningPoint* high = above != points.end() && above->first <= 2 * size ? &above->second : nullptr;
  const TuningPoint* low = nullptr;
  if (above != points.begin()) {
    const auto below = std::prev(above);
    if (2 * below->first >= size) low = &below->second;
  }
  if (low == nullptr || high == nullptr) return low != nullptr ? low : high;
  const auto ratio = [](int64_t more, int64_t less) { return static_cast<double>(more) / static_cast<double>(less); };
  return ratio(size, low->size) <= ratio(high->size, size) ? low : high;
}

const TuningPoint* TuningTable::at(const TuningSeries& series, int64_t size) const {
  const auto found = series_.find(series);
  if (found == series_.end()) return nullptr;
  const auto point = found->second.find(size);
  return point == found->second.end() ? nullptr : &point->second;
}

void TuningTable::put(const TuningSeries& series, TuningPoint point) {
  const int64_t size = point.size;
  series_[series].insert_or_assign(size, std::move(point));
}

void TuningTable::merge(const TuningTable& newer) {
  for (const auto& [series, points] : newer.series_) {
    for (const auto& [size, point] : points) put(series, point);
  }
}

size_t TuningTable::points() const {
  size_t count = 0;
  for (const auto& [series, points] : series_) count += points.size();
  return count;
}

bool isExact(fcclStrategy_t strategy) {
  return strategy == fcclStrategyOneshot || strategy == fcclStrategyTwoshot || strategy == fcclStrategyMinLatency ||
         strategy == fcclStrategyUb;
}

std::vector<const StrategyRow*> tuningCandidates(const Query& query, const Facts& facts) {
  std::vector<const StrategyRow*> candidates;
  std::vector<Plan> plans;
  for (const StrategyRow& row : strategies()) {
    if (!isExact(row.id) || !cannot(row, query, facts).empty()) continue;
    const Plan plan = row.plan(query, facts);
    if (std::ranges::any_of(plans, [&](const Plan& other) { return samePlan(plan, other); })) continue;
    candidates.push_back(&row);
    plans.push_back(plan);
  }
  return candidates;
}

fcclStrategy_t chooseByTimes(const std::vector<TuningTime>& times, fcclStrategy_t untuned) {
  const TuningTime* best = nullptr;
  for (const TuningTime& time : times) {
    if (isExact(time.strategy) && (best == nullptr || time.mean() < best->mean())) best = &time;
  }
  const auto known = std::ranges::find(times, untuned, &TuningTime::strategy);
  return known != times.end() && known->mean() <= kTie * best->mean() ? untuned : best->strategy;
}

std::vector<int64_t> sizesAtCrossovers(const TuningTable::Points& points) {
  std::vector<int64_t> sizes;
  for (auto high = points.begin(); high != points.end(); ++high) {
    if (high == points.begin()) continue;
    const TuningPoint& a = std::prev(high)->second;
    const TuningPoint& b = high->second;
    if (a.choice == b.choice || 4 * b.size <= 5 * a.size) continue;
    if (std::max(costOf(a, b.choice), costOf(b, a.choice)) <= kHarmless) continue;
    const auto middle =
        static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(a.size) * static_cast<double>(b.size))));
    if (middle > a.size && middle < b.size) sizes.push_back(middle);
  }
  return sizes;
}

TuningEffort planEffort(double slowest, size_t candidates, double share, double left) {
  constexpr double kBurst = 300;  // microseconds, against which the time to begin it is little
  constexpr int kMostCalls = 100;
  constexpr int kMostRounds = 21;
  constexpr int kUsualRounds = 7;
  constexpr int kFewestRounds = 3;
  TuningEffort effort;
  const double call = std::max(slowest, 0.1);
  effort.calls = std::clamp(static_cast<int>(kBurst / call), 1, kMostCalls);
  // With one call before them, in which the ranks meet.
  const double round = call * (effort.calls + 1) * 2 * static_cast<double>(candidates);
  const auto fit = [&](double time) { return static_cast<int>(std::min<double>(kMostRounds, time / round)); };
  effort.rounds = std::clamp(fit(share), kUsualRounds, kMostRounds);
  if (effort.rounds > fit(left)) effort.rounds = fit(left) >= kFewestRounds ? kFewestRounds : 0;
  return effort;
}

bool SteadyRounds::counts(double flag) {
  constexpr double kSteady = 1.5;
  least_ = std::min(least_, flag);
  const bool steady = std::max(before_, flag) <= kSteady * least_;
  before_ = flag;
  return steady || again_-- <= 0;
}

double medianOf(std::vector<double> samples) {
  std::ranges::sort(samples);
  const size_t half = samples.size() / 2;
  return samples.size() % 2 == 1 ? samples[half] : (samples[half - 1] + samples[half]) / 2;
}

}  // namespace fccl
