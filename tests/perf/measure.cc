#include "tests/perf/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "tests/perf/check.h"
#include "tests/perf/ping.h"

namespace fccl::perf {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kRoundUs = 10'000;
constexpr int kMostIters = 50'000;
constexpr int kCallsPerSample = 8;  // one call in so many is also timed singly

double microsecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// One variant under measurement. `call` numbers its calls: the input of each is another.
struct Lane {
  Variant& variant;
  Series series;
  uint64_t call = 0;

  void once() {
    variant.produce(call++);
    variant.run();
  }
};

// Mean time per call of the slowest rank, the same on every rank.
double timeCalls(Ranks& ranks, Lane& lane, int calls) {
  ranks.barrier();
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < calls; i++) lane.once();
  double perCall = microsecondsSince(start) / calls;
  ranks.maximum(std::span<double>(&perCall, 1));
  return perCall;
}

void timeSingleCalls(Ranks& ranks, Lane& lane, int calls) {
  std::vector<double> times(static_cast<size_t>(calls));
  ranks.barrier();
  lane.once();  // takes up what the barrier left the ranks apart
  Clock::time_point last = Clock::now();
  for (double& time : times) {
    lane.once();
    const Clock::time_point now = Clock::now();
    time = std::chrono::duration<double, std::micro>(now - last).count();
    last = now;
  }
  ranks.maximum(times);
  lane.series.callUs.insert(lane.series.callUs.end(), times.begin(), times.end());
}

// The number of calls that fill a round. All ranks see the slowest rank's times and so find the same.
int callsPerRound(Ranks& ranks, Lane& lane) {
  int calls = 1;
  double perCall = timeCalls(ranks, lane, calls);
  while (perCall * calls < kRoundUs / 10 && calls < kMostIters) {
    calls *= 4;
    perCall = timeCalls(ranks, lane, calls);
  }
  return static_cast<int>(std::clamp(std::ceil(kRoundUs / perCall), 1.0, static_cast<double>(kMostIters)));
}

void checkLane(Ranks& ranks, const Case& c, Lane& lane) {
  long long wrong = 0;
  Variant& variant = lane.variant;
  // In place the residual has grown with every call: then only a fresh call can be checked.
  const bool residualGrew = variant.inPlace() && traitsOf(c.pattern).residual;
  if (!residualGrew) wrong += countWrong(c, ranks.count(), lane.call - 1, variant);
  if (residualGrew) fillResidual(c.dtype, variant.buffers().residual, c.count());
  lane.once();
  wrong += countWrong(c, ranks.count(), lane.call - 1, variant);
  lane.series.wrong = std::llround(ranks.sum(static_cast<double>(wrong)));
}

void measureOnce(Ranks& ranks, std::vector<Lane>& lanes, const MeasureOptions& options, PingPair& ping) {
  for (Lane& lane : lanes) {
    lane.series.roundUs.clear();
    lane.series.callUs.clear();
  }
  ping.beforeNs = measurePing(ranks);
  for (int round = 0; round < options.rounds; round++) {
    for (size_t i = 0; i < lanes.size(); i++) {
      Lane& lane = lanes[(i + static_cast<size_t>(round)) % lanes.size()];
      lane.once();  // its buffers back into the caches after the others' calls
      lane.series.roundUs.push_back(timeCalls(ranks, lane, lane.series.iters));
      timeSingleCalls(ranks, lane, (lane.series.iters + kCallsPerSample - 1) / kCallsPerSample);
    }
  }
  ping.afterNs = measurePing(ranks);
}

}  // namespace

Row measureCase(Ranks& ranks, const Case& c, Variants& variants, const MeasureOptions& options) {
  std::vector<Lane> lanes;
  for (const auto& variant : variants) {
    lanes.push_back({*variant, {.variant = variant->name(), .inPlace = variant->inPlace()}});
  }
  for (Lane& lane : lanes) {
    for (int i = 0; i < options.warmup; i++) lane.once();
    lane.series.iters = options.iters > 0 ? options.iters : callsPerRound(ranks, lane);
  }
  Row row;
  row.c = c;
  measureOnce(ranks, lanes, options, row.ping);
  while (row.ping.changed() && row.attempts <= options.repeatChanged) {
    row.attempts++;
    measureOnce(ranks, lanes, options, row.ping);
  }
  for (Lane& lane : lanes) {
    if (options.check && lane.variant.hasResult()) checkLane(ranks, c, lane);
    row.series.push_back(std::move(lane.series));
  }
  return row;
}

}  // namespace fccl::perf
