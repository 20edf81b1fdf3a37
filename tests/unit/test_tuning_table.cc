// What the tuner makes of times: buckets, choices, crossovers, how much it measures, and that AUTO obeys. No clock.
#include <algorithm>
#include <cmath>
#include <random>

#include "lib/asked_call.h"
#include "tests/support/catch.h"
#include "tests/support/text.h"
#include "tuner/explain.h"
#include "tuner/paper_facts.h"
#include "tuner/tuning_table.h"

using namespace fccl;
using fccl::test::contains;

namespace {

constexpr auto kOne = fcclStrategyOneshot;
constexpr auto kTwo = fcclStrategyTwoshot;

TuningPoint point(int64_t size, fcclStrategy_t choice, double one = 1, double two = 2) {
  TuningPoint result;
  result.size = size;
  result.choice = choice;
  result.times = {{kOne, one, one}, {kTwo, two, two}};
  return result;
}

TuningSeries normSeries(int64_t hidden = 8192) {
  TuningSeries series;
  series.pattern = fcclPatternResidualRmsNorm;
  series.hidden = hidden;
  return series;
}

Query normQuery(int64_t rows, int64_t cols = 8192) {
  Query query;
  query.dtype = fcclBfloat16;
  query.pattern = fcclPatternResidualRmsNorm;
  query.norm = true;
  query.rows = rows;
  query.cols = cols;
  return query;
}

Facts onePcieGpuEach(int ranks) {
  Facts facts;
  facts.device = fcclDeviceCuda;
  facts.ranks = ranks;
  return facts;
}

// A machine on which ONESHOT takes 2 us + size / 64, TWOSHOT 4 us + size / 256: they meet at 170.
double modelTime(fcclStrategy_t strategy, int64_t size) {
  const auto rows = static_cast<double>(size);
  return strategy == kOne ? 2 + rows / 64 : 4 + rows / 256;
}

// As the communicator does it: powers of two, then the crossovers.
TuningTable tune(const std::function<double(fcclStrategy_t, int64_t)>& time) {
  TuningTable table;
  const auto measure = [&](int64_t size) {
    TuningPoint measured = point(size, kOne, time(kOne, size), time(kTwo, size));
    measured.choice = chooseByTimes(measured.times, kOne);
    table.put(normSeries(), measured);
  };
  for (int64_t size = 1; size <= 8192; size *= 2) measure(size);
  for (int turn = 0; turn < 10; turn++) {
    for (const int64_t size : sizesAtCrossovers(table.series().at(normSeries()))) measure(size);
  }
  return table;
}

}  // namespace

TEST_CASE("a size counts to the nearest measured one, by ratio, within a factor of two", "[tuning]") {
  TuningTable table;
  CHECK(table.find(normSeries(), 64) == nullptr);
  for (const int64_t size : {64, 128, 1024}) table.put(normSeries(), point(size, kOne));
  const auto found = [&](int64_t size) {
    const TuningPoint* at = table.find(normSeries(), size);
    return at == nullptr ? 0 : at->size;
  };
  CHECK(found(31) == 0);
  CHECK(found(32) == 64);
  CHECK(found(64) == 64);
  CHECK(found(90) == 64);  // 90.5 is in the middle
  CHECK(found(91) == 128);
  CHECK(found(256) == 128);
  CHECK(found(257) == 0);
  CHECK(found(511) == 0);
  CHECK(found(512) == 1024);
  CHECK(found(2048) == 1024);
  CHECK(found(2049) == 0);
  CHECK(found(0) == 0);
  CHECK(table.find(normSeries(4096), 64) == nullptr);
  TuningSeries windows = normSeries();
  windows.windows = true;
  CHECK(table.find(windows, 64) == nullptr);
  // Equally near: the smaller.
  TuningTable even;
  even.put(normSeries(), point(100, kOne));
  even.put(normSeries(), point(144, kOne));
  CHECK(even.find(normSeries(), 120)->size == 100);
  CHECK(even.find(normSeries(), 121)->size == 144);
}

TEST_CASE("what calls have in common and their size", "[tuning]") {
  Query query = normQuery(64);
  CHECK(seriesOf(query) == normSeries());
  CHECK(tuningSize(query) == 64);
  query.pattern = fcclPatternResidualRmsNormOutQuantNvfp4;
  query.quant = QuantKind::kNvfp4;
  query.inputInWindow = true;
  CHECK(seriesOf(query).pattern == fcclPatternResidualRmsNormOutQuantNvfp4);
  CHECK(seriesOf(query).windows);
  TuningTable table;
  table.put(seriesOf(query), point(64, kOne));
  query.pattern = fcclPatternResidualRmsNormQuantNvfp4;
  CHECK(table.find(seriesOf(query), 64) == nullptr);
  Query plain;
  plain.dtype = fcclFloat32;
  plain.rows = 1;
  plain.cols = 1000;
  CHECK(seriesOf(plain).hidden == 0);
  CHECK(tuningSize(plain) == 4000);
  plain.inputInWindow = true;
  CHECK_FALSE(seriesOf(plain).windows);
  plain.outputInWindow = true;
  CHECK(seriesOf(plain).windows);
}

TEST_CASE("the fastest is taken, and what AUTO took before where it is as fast", "[tuning]") {
  const auto choose = [](double one, double two, fcclStrategy_t untuned) {
    return chooseByTimes(point(1, kOne, one, two).times, untuned);
  };
  CHECK(choose(10, 12, kOne) == kOne);
  CHECK(choose(10, 12, kTwo) == kOne);
  CHECK(choose(10, 10.05, kTwo) == kTwo);
  CHECK(choose(10.05, 10, kOne) == kOne);
  CHECK(choose(10.2, 10, kOne) == kTwo);
  CHECK(choose(10, 12, fcclStrategyNccl) == kOne);  // what it took is not among those that were timed
  // Warm and cold count alike.
  CHECK(chooseByTimes({{kOne, 1, 9}, {kTwo, 4, 4}}, kOne) == kTwo);
  CHECK(chooseByTimes({{fcclStrategyNccl, 1, 1}, {kOne, 3, 3}, {kTwo, 2, 2}}, kOne) == kTwo);
}

TEST_CASE("sizes near a crossover are measured until its neighbours are close", "[tuning]") {
  const TuningTable table = tune(modelTime);
  const TuningTable::Points& points = table.series().at(normSeries());
  CHECK(points.size() <= 14 + 4);
  for (int64_t size = 1; size <= 8192; size++) {
    const TuningPoint* at = table.find(normSeries(), size);
    REQUIRE(at != nullptr);
    const double best = std::min(modelTime(kOne, size), modelTime(kTwo, size));
    INFO(size);
    CHECK(modelTime(at->choice, size) <= 1.1 * best);
  }
  // Where the two are within 3 % nothing is at stake, and a gap that nobody asked about is left alone.
  TuningTable level;
  level.put(normSeries(), point(64, kOne, 100, 102));
  level.put(normSeries(), point(128, kTwo, 102, 100));
  CHECK(sizesAtCrossovers(level.series().at(normSeries())).empty());
  level.put(normSeries(), point(128, kTwo, 110, 100));
  CHECK(sizesAtCrossovers(level.series().at(normSeries())) == std::vector<int64_t>{91});
  level.put(normSeries(), point(80, kTwo, 110, 100));
  CHECK(sizesAtCrossovers(level.series().at(normSeries())).empty());
  level.put(normSeries(1), point(1, kOne, 1, 2));
  level.put(normSeries(1), point(2, kTwo, 2, 1));
  CHECK(sizesAtCrossovers(level.series().at(normSeries(1))).empty());  // nothing between
}

TEST_CASE("tunings of a noisy machine agree, or differ by less than 3 % in time", "[tuning]") {
  std::mt19937 random(7);
  std::normal_distribution<double> noise(1.0, 0.01);
  int same = 0;
  int harmless = 0;
  int all = 0;
  const TuningTable first = tune(modelTime);
  for (int turn = 0; turn < 200; turn++) {
    // Medians of seven samples, of which each is 1 % off.
    const TuningTable again = tune([&](fcclStrategy_t strategy, int64_t size) {
      std::vector<double> samples(7);
      for (double& sample : samples) sample = modelTime(strategy, size) * std::abs(noise(random));
      return medianOf(samples);
    });
    for (int64_t size = 1; size <= 8192; size += 1 + size / 16) {
      const fcclStrategy_t a = first.find(normSeries(), size)->choice;
      const fcclStrategy_t b = again.find(normSeries(), size)->choice;
      all++;
      same += a == b;
      harmless += a == b || modelTime(b, size) <= 1.03 * modelTime(a, size);
    }
  }
  CHECK(same >= 0.95 * all);
  CHECK(harmless >= 0.99 * all);
}

TEST_CASE("how much is measured follows the time there is", "[tuning]") {
  const TuningEffort small = planEffort(3, 2, 20'000, 1e6);
  CHECK(small.calls == 100);
  CHECK(small.rounds == 16);
  CHECK(planEffort(30, 2, 1e6, 1e6).rounds == 21);
  CHECK(planEffort(30, 2, 100, 1e6).rounds == 7);
  const TuningEffort large = planEffort(50'000, 2, 20'000, 1'300'000);
  CHECK(large.calls == 1);
  CHECK(large.rounds == 3);  // seven would take 2.8 s
  CHECK(planEffort(50'000, 2, 20'000, 1'100'000).rounds == 0);
  CHECK(planEffort(0, 2, 0, 0).rounds == 0);
}

TEST_CASE("medians", "[tuning]") {
  CHECK(medianOf({3, 1, 2}) == 2);
  CHECK(medianOf({4, 1, 2, 3}) == 2.5);
}

TEST_CASE("candidates: eligible strategies whose bits are those of the others, each way once", "[tuning]") {
  Facts facts = onePcieGpuEach(4);
  const auto names = [&](const Query& query) {
    std::string text;
    for (const StrategyRow* row : tuningCandidates(query, facts)) text += fmt::format("{} ", row->name);
    return text;
  };
  CHECK(names(normQuery(64)) == "ONESHOT TWOSHOT ");
  facts.noNccl.clear();
  CHECK(names(normQuery(64)) == "ONESHOT TWOSHOT ");
  Query windows = normQuery(64);
  windows.inputInWindow = true;
  CHECK(names(windows) == "ONESHOT TWOSHOT UB ");
  facts.group.peerAccess = false;
  CHECK(names(normQuery(64)).empty());
  facts = Facts();
  facts.ranks = 4;
  facts.slotBytes = facts.lamportSlotBytes = 1 << 18;
  facts.simd = host::bestSimd();
  CHECK(names(normQuery(64)) == "ONESHOT TWOSHOT ");
  CHECK(names(normQuery(2)) == "ONESHOT ");  // TWOSHOT does fewer rows than ranks as ONESHOT
  for (const StrategyRow& row : strategies()) {
    if (row.id == fcclStrategyNccl || row.id == fcclStrategyNcclSymmetric) CHECK_FALSE(isExact(row.id));
  }
}

TEST_CASE("AUTO takes what was measured, and explain says so with the times of the others", "[tuning]") {
  fcclQuery_t asked = FCCL_QUERY_INITIALIZER;
  asked.pattern = fcclPatternResidualRmsNorm;
  asked.tokens = 60;
  asked.hidden = 8192;
  const Query query = queryOf(asked).value();
  const Result<Topology> read = readTopology(std::string(FCCL_SOURCE_DIR) + "/transport/topologies/dgx-b200.json");
  REQUIRE(read.ok());
  Facts facts = paperFacts(read.value(), 4);
  REQUIRE(chooseStrategy(query, facts).id == kOne);

  TuningTable table;
  table.put(normSeries(), point(64, kTwo, 4.5, 3.5));
  facts.tuned = std::make_shared<const TuningTable>(table);
  CHECK(chooseStrategy(query, facts).id == kTwo);
  const std::string text = explain(describeCall(asked, 4), query, facts).text();
  INFO(text);
  CHECK(contains(text,
                 "Tuned, measured at 64 tokens: ONESHOT 4.5 us (4.5 warm, 4.5 cold), TWOSHOT 3.5 us (3.5 warm, 3.5 "
                 "cold): TWOSHOT."));
  CHECK(contains(text, "-> TWOSHOT"));

  // Other sizes and kinds are decided as before, and explain says why.
  asked.tokens = 8;
  CHECK(chooseStrategy(queryOf(asked).value(), facts).id == kOne);
  CHECK(contains(explain("", queryOf(asked).value(), facts).text(), "Tuned, but for no call of this kind"));
  // What cannot do the call is not taken, whatever a file says.
  TuningTable windows;
  windows.put(normSeries(), point(64, fcclStrategyUb));
  facts.tuned = std::make_shared<const TuningTable>(windows);
  CHECK(chooseStrategy(query, facts).id == kOne);
  CHECK(contains(explain("", query, facts).text(), "UB, which cannot do this call."));
}

TEST_CASE("rounds in which the ranks' cores changed are made again, and at most as many as there were", "[tuning]") {
  // Of `flags`, the first before all rounds, the last one again and again: how many rounds are made for five that
  // count?
  const auto madeFor = [](const std::vector<double>& flags) {
    SteadyRounds rounds(5, flags[0]);
    int made = 0;
    for (int counted = 0; counted < 5; made++) {
      counted += rounds.counts(flags[std::min<size_t>(static_cast<size_t>(made) + 1, flags.size() - 1)]) ? 1 : 0;
    }
    return made;
  };
  CHECK(madeFor({0}) == 5);
  CHECK(madeFor({170}) == 5);
  CHECK(madeFor({170, 250, 120, 170}) == 6);               // 250 is more than 1.5 times 120, the least so far
  CHECK(madeFor({170, 170, 2700, 170}) == 7);              // the round before, and the one after
  CHECK(madeFor({170, 170, 2700, 2700, 2700, 170}) == 9);  // four rounds
  CHECK(madeFor({2700, 170}) == 6);                        // before the first
  CHECK(madeFor({45, 170}) == 10);                         // for good: the second five count
}
