// fccl-perf's question before it times a case: which strategy will it be? FCCL_PERF_PARTS is defined where tests/perf
// is linked in.
#ifdef FCCL_PERF_PARTS
#include <array>
#include <nlohmann/json.hpp>

#include "lib/testing.h"
#include "tests/perf/buffers.h"
#include "tests/perf/chosen.h"
#include "tests/perf/ranks.h"
#include "tests/perf/report.h"
#include "tests/perf/variants.h"
#include "tests/support/catch.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/text.h"
#include "tuner/tuning_table.h"

namespace fccl::perf {
namespace {

using test::contains;

constexpr std::array kNamed = {fcclStrategyOneshot,      fcclStrategyTwoshot, fcclStrategyMinLatency,   fcclStrategyUb,
                               fcclStrategyLowPrecision, fcclStrategyNccl,    fcclStrategyNcclSymmetric};

// Ranks of this process, as fccl-perf makes them for a strategy.
template <int kRanks>
class Group {
 public:
  explicit Group(fcclStrategy_t strategy) {
    fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
    config.deviceType = fcclDeviceHost;
    if (strategy != fcclStrategyAuto) config.strategy = strategy;
    REQUIRE(fcclCommInitAll(comms_, kRanks, &config) == fcclSuccess);
  }
  ~Group() {
    for (fcclComm_t comm : comms_) fcclCommDestroy(comm);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  fcclComm_t first() const { return comms_[0]; }

 private:
  fcclComm_t comms_[kRanks] = {};
};

Case plainCase(fcclStrategy_t strategy, bool windows = false) {
  Case c;
  c.strategy = strategy;
  c.hidden = 4096;
  c.windows = windows;
  return c;
}

Case normCase(fcclStrategy_t strategy, bool windows = false) {
  Case c = plainCase(strategy, windows);
  c.pattern = fcclPatternResidualRmsNorm;
  c.dtype = fcclBfloat16;
  c.tokens = 4;
  return c;
}

}  // namespace

TEST_CASE("perf: a strategy that cannot do a case is said before anything is timed", "[perf]") {
  const Group<2> group(fcclStrategyUb);
  const Choice without = choiceOf(plainCase(fcclStrategyUb), false, group.first());
  CHECK(without.strategy != "UB");
  CHECK(contains(without.refusal, "UB needs the input in a window"));
  const Choice with = choiceOf(plainCase(fcclStrategyUb, true), false, group.first());
  CHECK(with.strategy == "UB");
  CHECK(with.refusal.empty());

  const Choices none = choicesOf(plainCase(fcclStrategyUb), {false, true}, group.first());
  CHECK(none.served.empty());
  CHECK(
      none.refusals.starts_with("# plain float sum 16 KiB, ub: UB cannot serve this: UB needs the input in a window"));
  CHECK(none.refusals.find('\n') == none.refusals.size() - 1);

  // A norm in the place of the input is what peers would read.
  const Choices place = choicesOf(normCase(fcclStrategyUb, true), {false, true}, group.first());
  CHECK(place.served == std::vector<bool>{false});
  CHECK(place.refusals.starts_with("# residual_rms_norm bfloat16 4 x 4096, windows, ub, in place: UB cannot serve"));

  Case odd = normCase(fcclStrategyAuto);
  odd.pattern = fcclPatternResidualRmsNormQuantNvfp4;
  odd.hidden = 24;
  CHECK(contains(choiceOf(odd, false, group.first()).refusal, "hidden is 24"));
}

TEST_CASE("perf: what is asked for agrees with what the call does, for every strategy by its name", "[perf]") {
  for (const fcclStrategy_t strategy : kNamed) {
    const Group<1> group(fcclStrategyAuto);
    for (const fcclFusionPattern_t pattern : allPatterns()) {
      for (const bool windows : {false, true}) {
        for (const bool inPlace : {false, true}) {
          Case c = normCase(strategy, windows);
          c.pattern = pattern;
          if (!c.fused()) continue;
          CAPTURE(describe(c), inPlace);
          const Choice choice = choiceOf(c, inPlace, group.first());
          const auto call = makeFccl(c, inPlace, 0, group.first());
          call->produce(0);
          std::string error;
          try {
            call->run();
          } catch (const std::runtime_error& refused) {
            error = refused.what();
          }
          CHECK(choice.refusal.empty() == error.empty());
          CHECK(contains(error, choice.refusal));
        }
      }
    }
  }
}

TEST_CASE("perf: with auto every case is served, and the strategy is named", "[perf]") {
  const Group<2> group(fcclStrategyAuto);
  const Choices choices = choicesOf(plainCase(fcclStrategyAuto), {false, true}, group.first());
  CHECK(choices.refusals.empty());
  CHECK(choices.served == std::vector<bool>{false, true});

  Row row;
  row.c = plainCase(fcclStrategyAuto);
  row.series = {{.variant = "fccl", .roundUs = {1.0}, .callUs = {1.0}, .chosen = "ONESHOT"},
                {.variant = "fccl", .inPlace = true, .roundUs = {1.0}, .callUs = {1.0}, .chosen = "TWOSHOT"},
                {.variant = "mpi", .roundUs = {2.0}, .callUs = {2.0}}};
  CHECK(contains(rowText(row, 2), ", ONESHOT (in place TWOSHOT)\n"));
  row.series[1].chosen = "ONESHOT";
  CHECK(contains(rowText(row, 2), ", ONESHOT\n"));
  CHECK(jsonOf(row, 2)["series"][0]["chosen"] == "ONESHOT");
  CHECK_FALSE(jsonOf(row, 2)["series"][2].contains("chosen"));
  row.c.strategy = fcclStrategyOneshot;  // stands above the rows
  CHECK_FALSE(contains(rowText(row, 2), "ONESHOT"));
}

TEST_CASE("perf: the strategy is named as AUTO decides after it was tuned", "[perf]") {
  const Group<2> group(fcclStrategyAuto);
  const Case c = normCase(fcclStrategyAuto);
  CHECK(choiceOf(c, false, group.first()).strategy == "ONESHOT");
  TuningTable tuned;
  tuned.put({.pattern = c.pattern, .dtype = c.dtype, .hidden = c.hidden},
            {.size = c.tokens, .choice = fcclStrategyTwoshot, .times = {{fcclStrategyTwoshot, 1, 1}}});
  testing::communicatorOf(group.first()).adopt(tuned);
  CHECK(choiceOf(c, false, group.first()).strategy == "TWOSHOT");
}

TEST_CASE("perf: FCCL_STRATEGY stands before what is asked for, and a case is refused then", "[perf]") {
  const test::ScopedVariable other("FCCL_STRATEGY", "twoshot");
  const Group<2> group(fcclStrategyOneshot);
  const Choice choice = choiceOf(plainCase(fcclStrategyOneshot), false, group.first());
  CHECK(choice.strategy == "TWOSHOT");
  CHECK(contains(choice.refusal, "AUTO stands for TWOSHOT (strategy, FCCL_STRATEGY)."));
}

}  // namespace fccl::perf
#endif
