// fcclCommTune on HOST: what it measures AUTO takes, on all ranks alike, now and from the file; what is wrong is said.
#include <numeric>

#include "lib/testing.h"
#include "tests/support/catch.h"
#include "tests/support/explained.h"
#include "tests/support/fused_case.h"
#include "tests/support/scoped_file.h"
#include "tests/support/text.h"
#include "tests/support/thread_ranks.h"
#include "tuner/tuning_table.h"

using namespace fccl::test;

namespace {

constexpr auto kNorm = fcclPatternResidualRmsNorm;

fcclQuery_t asked(fcclFusionPattern_t pattern, int64_t tokens, int64_t hidden = 1024) {
  fcclQuery_t query = FCCL_QUERY_INITIALIZER;
  query.pattern = pattern;
  query.tokens = tokens;
  query.hidden = hidden;
  return query;
}

void tune(RankGroup& group, const std::vector<fcclQuery_t>& queries, int budgetMs = 0) {
  group.run("tune", [&](Rank& rank) {
    rank.ok(fcclCommTune(rank.comm, queries.data(), static_cast<int>(queries.size()), budgetMs), "fcclCommTune");
  });
}

// Every rank says the same of every query; what rank 0 says.
std::vector<std::string> agreedExplanations(const RankGroup& group, const std::vector<fcclQuery_t>& queries) {
  std::vector<std::string> texts;
  for (const fcclQuery_t& query : queries) {
    texts.push_back(explained(group.comm(0), query));
    for (int r = 1; r < group.ranks(); ++r) CHECK(explained(group.comm(r), query) == texts.back());
  }
  return texts;
}

void checkCollectives(RankGroup& group) {
  FusedCase fused;
  fused.tokens = 33;
  fused.hidden = 1024;
  for (int i = 0; i < 3; ++i) runFused(group, fused);
}

const std::vector<fcclQuery_t> kFew = {asked(kNorm, 4), asked(kNorm, 32), asked(kNorm, 64),
                                       asked(fcclPatternAllReduce, 64)};

}  // namespace

TEST_CASE("tune: AUTO takes what was measured, on all ranks alike", "[tune]") {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    INFO(ranks << " ranks");
    RankGroup group(ranks);
    CHECK_FALSE(contains(explained(group.comm(0), kFew[2]), "Tuned"));
    tune(group, kFew);
    const std::vector<std::string> texts = agreedExplanations(group, kFew);
    if (ranks > 1) {
      INFO(texts[2]);
      CHECK(contains(texts[2], "Tuned, measured at 64 tokens: ONESHOT "));
      CHECK(contains(texts[2], ", TWOSHOT "));
      CHECK(contains(texts[3], "Tuned, measured at 131072 bytes: ONESHOT "));
    }
    checkCollectives(group);
  }
}

TEST_CASE("tune: a tuned choice is obeyed by calls whose plan was made before", "[tune]") {
  RankGroup group(2);
  checkCollectives(group);
  fcclQuery_t query = asked(kNorm, 33);
  const fccl::Facts& facts = fccl::testing::communicatorOf(group.comm(0)).facts();
  for (const fcclStrategy_t wanted : {fcclStrategyTwoshot, fcclStrategyOneshot}) {
    fccl::TuningTable table;
    fccl::TuningSeries series;
    series.pattern = fcclPatternResidualRmsNorm;
    series.hidden = 1024;
    fccl::TuningPoint point;
    point.size = 32;
    point.choice = wanted;
    point.times = {{wanted, 1, 1}};
    table.put(series, point);
    for (int r = 0; r < 2; ++r) fccl::testing::communicatorOf(group.comm(r)).adopt(table);
    CHECK(facts.tuned->points() == 1);
    CHECK(contains(explained(group.comm(1), query), wanted == fcclStrategyTwoshot ? "-> TWOSHOT" : "-> ONESHOT"));
    checkCollectives(group);
  }
}

TEST_CASE("tune: with windows UB is among the candidates", "[tune]") {
  RankGroup group(2);
  fcclQuery_t query = asked(kNorm, 16);
  query.inputInWindow = 1;
  fcclQuery_t plain = asked(fcclPatternAllReduce, 16);
  plain.inputInWindow = plain.outputInWindow = 1;
  tune(group, {query, asked(kNorm, 16), plain});
  const std::vector<std::string> texts = agreedExplanations(group, {query, asked(kNorm, 16), plain});
  CHECK(contains(texts[0], ", UB "));
  CHECK(contains(texts[0], "Tuned, measured at 16 tokens"));
  CHECK_FALSE(contains(texts[1], ", UB "));
  CHECK(contains(texts[2], ", UB "));
  CHECK(fccl::testing::communicatorOf(group.comm(0)).windows().empty());
  checkCollectives(group);
}

TEST_CASE("tune: all patterns, other types and operators, and under FCCL_CHECK", "[tune]") {
  fcclConfig_t config = testConfig();
  config.checkCalls = 1;
  RankGroup group(3, config);
  std::vector<fcclQuery_t> queries;
  for (const fcclFusionPattern_t pattern : allPatterns()) queries.push_back(asked(pattern, 6, 96));
  queries.push_back(asked(fcclPatternAllReduce, 7, 333));
  queries.back().dtype = fcclInt32;
  queries.back().op = fcclMax;
  queries.push_back(asked(kNorm, 5, 2880));
  queries.back().dtype = fcclFloat32;
  tune(group, queries);
  agreedExplanations(group, queries);
  checkCollectives(group);
}

TEST_CASE("tune: what is wrong on one rank fails on all, and the communicator goes on", "[tune]") {
  RankGroup group(3);
  const auto refused = [&](const char* words, auto change) {
    group.run("a wrong call", [&](Rank& rank) {
      std::vector<fcclQuery_t> queries = kFew;
      const fcclQuery_t* at = queries.data();
      int n = static_cast<int>(queries.size());
      int budgetMs = 0;
      if (rank.rank == 1) change(queries, at, n, budgetMs);
      rank.fails(fcclCommTune(rank.comm, at, n, budgetMs), fcclInvalidArgument, words, "fcclCommTune");
    });
  };
  using Queries = std::vector<fcclQuery_t>;
  refused("calls is NULL", [](Queries&, const fcclQuery_t*& at, int&, int&) { at = nullptr; });
  refused("n is 0; it must be from 1", [](Queries&, const fcclQuery_t*&, int& n, int&) { n = 0; });
  refused("n is 4097", [](Queries&, const fcclQuery_t*&, int& n, int&) { n = 4097; });
  refused("budgetMs is -1", [](Queries&, const fcclQuery_t*&, int&, int& budget) { budget = -1; });
  refused("calls[2]: tokens is 0", [](Queries& q, const fcclQuery_t*&, int&, int&) { q[2].tokens = 0; });
  refused("calls[0]: fcclQuery_t.magic", [](Queries& q, const fcclQuery_t*&, int&, int&) { q[0].magic = 7; });
  refused("calls[1].strategy is TWOSHOT; all strategies are timed",
          [](Queries& q, const fcclQuery_t*&, int&, int&) { q[1].strategy = fcclStrategyTwoshot; });
  group.run("different calls", [&](Rank& rank) {
    std::vector<fcclQuery_t> queries = kFew;
    if (rank.rank == 2) queries[1].tokens = 31;
    rank.fails(fcclCommTune(rank.comm, queries.data(), 4, 0), fcclInvalidUsage,
               "Rank 0 and rank 2 tune different shapes", "fcclCommTune");
  });
  checkCollectives(group);
  CHECK(fcclCommTune(nullptr, kFew.data(), 1, 0) == fcclInvalidArgument);
}

TEST_CASE("tune: when the time is over the rest is decided as before", "[tune]") {
  RankGroup group(2);
  std::vector<fcclQuery_t> queries;
  for (int64_t tokens = 4; tokens < 400; ++tokens) queries.push_back(asked(kNorm, tokens));
  tune(group, queries, 1);
  const auto tuned = fccl::testing::communicatorOf(group.comm(0)).facts().tuned;
  CHECK((tuned == nullptr || tuned->points() < 200));
  agreedExplanations(group, {queries.front(), queries.back()});
  checkCollectives(group);
}

TEST_CASE("tune: one thread tunes all ranks in a group", "[tune]") {
  RankGroup group(2);
  REQUIRE(fcclGroupStart() == fcclSuccess);
  for (int r = 0; r < 2; ++r) {
    std::vector<fcclQuery_t> gone = {asked(kNorm, 16)};
    REQUIRE(fcclCommTune(group.comm(r), gone.data(), 1, 0) == fcclSuccess);
  }
  CHECK_FALSE(contains(explained(group.comm(0), asked(kNorm, 16)), "Tuned"));
  REQUIRE(fcclGroupEnd() == fcclSuccess);
  CHECK(contains(agreedExplanations(group, {asked(kNorm, 16)})[0], "Tuned, measured at 16 tokens"));
  REQUIRE(fcclGroupStart() == fcclSuccess);
  CHECK(fcclCommTune(group.comm(0), nullptr, 1, 0) == fcclInvalidArgument);
  CHECK(fcclGroupEnd() == fcclInvalidArgument);
}

TEST_CASE("tune: the file keeps what was measured, and another group takes it from there", "[tune]") {
  const ScopedFile file("tune.json");
  fcclConfig_t config = testConfig();
  config.tuningFile = file.path().c_str();
  std::vector<std::string> texts;
  {
    RankGroup group(2, config);
    tune(group, kFew);
    texts = agreedExplanations(group, kFew);
  }
  const std::string written = file.read();
  CHECK(contains(written, "\"size\": 64"));
  {
    RankGroup group(2, config);
    CHECK(agreedExplanations(group, kFew) == texts);
    // It has all of it: nothing is measured, nothing is written.
    tune(group, kFew);
    CHECK(agreedExplanations(group, kFew) == texts);
    CHECK(file.read() == written);
    checkCollectives(group);
    tune(group, {asked(kNorm, 8, 512)});
    CHECK(contains(file.read(), "\"hidden\": 512"));
  }
  // Results of two ranks say nothing about three.
  RankGroup three(3, config);
  CHECK_FALSE(contains(explained(three.comm(0), kFew[2]), "Tuned"));
}

TEST_CASE("tune: a damaged file is ignored and left as it is", "[tune]") {
  const ScopedFile file("tune.json");
  file.write("{\"format\": 1, \"machines\": [{]}");
  fcclConfig_t config = testConfig();
  config.tuningFile = file.path().c_str();
  RankGroup group(2, config);
  tune(group, {kFew[2]});
  CHECK(contains(agreedExplanations(group, {kFew[2]})[0], "Tuned, measured at 64 tokens"));
  CHECK(file.read() == "{\"format\": 1, \"machines\": [{]}");
  // Nor does a place where no file can be keep anybody from tuning.
  config.tuningFile = "/nonexistent/tune.json";
  RankGroup other(2, config);
  tune(other, {kFew[2]});
  CHECK(contains(agreedExplanations(other, {kFew[2]})[0], "Tuned, measured at 64 tokens"));
}

TEST_CASE("tune: ranks with different files decide by rank 0's", "[tune]") {
  const ScopedFile files[] = {ScopedFile("tune-0.json"), ScopedFile("tune-1.json")};
  fcclConfig_t config = testConfig();
  for (const ScopedFile& file : files) {
    config.tuningFile = file.path().c_str();
    RankGroup group(2, config);
    tune(group, {kFew[2]});
  }
  // One of the two now says the contrary of what was measured, without the other's times.
  const auto agreed = [&](const char* first, const char* second) {
    fcclUniqueId id;
    REQUIRE(fcclGetUniqueId(&id) == fcclSuccess);
    std::vector<fcclComm_t> comms(2);
    runThreads(2, "init", Seconds(40), [&](int rank) {
      fcclConfig_t own = testConfig();
      own.tuningFile = rank == 0 ? first : second;
      if (fcclCommInit(&comms[static_cast<size_t>(rank)], 2, id, rank, &own) != fcclSuccess) std::abort();
    });
    RankGroup group(comms);
    const std::string text = agreedExplanations(group, {kFew[2]})[0];
    checkCollectives(group);
    return text;
  };
  const std::string byFirst = agreed(files[0].path().c_str(), files[1].path().c_str());
  CHECK(contains(byFirst, "Tuned"));
  CHECK(agreed(files[0].path().c_str(), nullptr) == byFirst);
  CHECK(agreed(files[1].path().c_str(), files[0].path().c_str()) != byFirst);
  CHECK_FALSE(contains(agreed(nullptr, files[1].path().c_str()), "Tuned"));
}
