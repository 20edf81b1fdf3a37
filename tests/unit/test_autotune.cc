// FCCL_AUTOTUNE on HOST: the first call of a size is measured before it is made, on all ranks or on none, and results
// are right either way.
#include <thread>

#include "lib/testing.h"
#include "tests/support/catch.h"
#include "tests/support/explained.h"
#include "tests/support/fused_case.h"
#include "tests/support/scoped_file.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/text.h"
#include "tests/support/thread_ranks.h"

using namespace fccl::test;

namespace {

// On a busy machine a call may take a hundred times as long as the others.
class FcclAutotune {
 public:
  explicit FcclAutotune(const char* value, const char* name = "FCCL_AUTOTUNE") : variable_(name, value) {
    fccl::testing::testOptions().slowness = 20;
  }
  ~FcclAutotune() { fccl::testing::testOptions().slowness = 1; }
  FcclAutotune(const FcclAutotune&) = delete;
  FcclAutotune& operator=(const FcclAutotune&) = delete;

 private:
  const ScopedVariable variable_;
};

fcclQuery_t asked(int64_t tokens, int64_t hidden = 512) {
  fcclQuery_t query = FCCL_QUERY_INITIALIZER;
  query.pattern = fcclPatternResidualRmsNorm;
  query.tokens = tokens;
  query.hidden = hidden;
  return query;
}

// A right call of so many tokens on every rank.
void call(RankGroup& group, int64_t tokens, fcclStrategy_t strategy = fcclStrategyAuto,
          const FusedCall& how = callOnHost) {
  FusedCase fused;
  fused.tokens = tokens;
  fused.hidden = 512;
  fused.strategy = strategy;
  runFused(group, fused, how);
}

size_t tunedPoints(const RankGroup& group, int rank) {
  const fccl::Facts& facts = fccl::testing::communicatorOf(group.comm(rank)).facts();
  return facts.tuned == nullptr ? 0 : facts.tuned->points();
}

bool isTunedAt(const RankGroup& group, int rank, int64_t tokens) {
  const fccl::Facts& facts = fccl::testing::communicatorOf(group.comm(rank)).facts();
  fccl::TuningSeries series;
  series.pattern = fcclPatternResidualRmsNorm;
  series.hidden = 512;
  return facts.tuned != nullptr && facts.tuned->at(series, tokens) != nullptr;
}

}  // namespace

TEST_CASE("autotune: the first call of a bucket is measured, at its power of two, and on all ranks alike", "[tune]") {
  const FcclAutotune on("1");
  for (const int ranks : {2, 3}) {
    INFO(ranks << " ranks");
    RankGroup group(ranks);
    CHECK_FALSE(contains(explained(group.comm(0), asked(13)), "Tuned"));
    call(group, 13);
    const std::string text = explained(group.comm(0), asked(13));
    INFO(text);
    CHECK(contains(text, "Tuned, measured at 16 tokens"));
    for (int r = 1; r < ranks; ++r) CHECK(explained(group.comm(r), asked(13)) == text);
    for (const int64_t sameBucket : {12, 22, 16, 13}) call(group, sameBucket);
    CHECK(tunedPoints(group, 0) == 1);
    // Others come in their turn, and sizes between those that choose differently.
    for (const int64_t tokens : {23, 64}) call(group, tokens);
    for (int r = 0; r < ranks; ++r) {
      for (const int64_t tokens : {16, 32, 64}) CHECK(isTunedAt(group, r, tokens));
      CHECK_FALSE(isTunedAt(group, r, 8));
    }
  }
}

TEST_CASE("autotune: plain calls in groups, of ranks that one thread drives", "[tune]") {
  const FcclAutotune on("1");
  RankGroup group(2);
  std::vector<float> in(3000, 1.5f);
  std::vector<std::vector<float>> out(2, std::vector<float>(3000));
  runThreads(1, "one thread, two ranks", Seconds(20), [&](int) {
    fcclGroupStart();
    for (int r = 0; r < 2; ++r) {
      fcclAllReduce(in.data(), out[static_cast<size_t>(r)].data(), in.size(), fcclFloat32, fcclSum, group.comm(r),
                    nullptr);
    }
    fcclGroupEnd();
  });
  CHECK(out[0] == std::vector<float>(3000, 3.0f));
  CHECK(out[1] == out[0]);
  CHECK(tunedPoints(group, 0) == 1);
  CHECK(tunedPoints(group, 1) == 1);
}

TEST_CASE("autotune: a strategy by name is not measured, and on HOST nothing is without FCCL_AUTOTUNE=1", "[tune]") {
  for (const char* value : {"0", "1", "none"}) {
    INFO("FCCL_AUTOTUNE=" << value);
    const FcclAutotune variable(value, std::string_view(value) == "none" ? "FCCL_NOT_SET" : "FCCL_AUTOTUNE");
    RankGroup group(2);
    call(group, 8, fcclStrategyTwoshot);
    CHECK(tunedPoints(group, 0) == 0);
    call(group, 8);
    CHECK(tunedPoints(group, 0) == (std::string_view(value) == "1" ? 1 : 0));
  }
}

TEST_CASE("autotune: where a rank does not come in time, no rank measures, then and later, and calls are right",
          "[tune]") {
  const FcclAutotune on("1");
  RankGroup group(3);
  call(group, 4);
  CHECK(tunedPoints(group, 0) == 1);
  call(group, 64, fcclStrategyAuto, [](Rank& rank, FusedBuffers& own) {
    if (rank.rank == 1) std::this_thread::sleep_for(fccl::Autotune::kPatience + std::chrono::milliseconds(500));
    return callOnHost(rank, own);
  });
  for (const int64_t tokens : {64, 256, 4, 1024}) call(group, tokens);
  for (int r = 0; r < 3; ++r) CHECK(tunedPoints(group, r) == 1);
}

TEST_CASE("autotune: ranks that come with different calls measure nothing, and the call says what it says", "[tune]") {
  const FcclAutotune on("1");
  const ScopedVariable check("FCCL_CHECK", "1");
  RankGroup group(2);
  group.run("different calls", [&](Rank& rank) {
    std::vector<float> data(rank.rank == 0 ? 1000 : 100'000);
    rank.fails(fcclAllReduce(data.data(), data.data(), data.size(), fcclFloat32, fcclSum, rank.comm, nullptr),
               fcclInvalidUsage, "call different collectives", "fcclAllReduce");
  });
  call(group, 8);
  CHECK(tunedPoints(group, 0) == 0);
}

TEST_CASE("autotune: a rank that dies or aborts ends the wait of the others at once", "[tune]") {
  const FcclAutotune on("1");
  RankGroup group(3);
  group.run("one aborts", [&](Rank& rank) {
    if (rank.rank == 2) {
      rank.ok(fcclCommAbort(rank.comm), "fcclCommAbort");
      group.forget(2);
      return;
    }
    std::vector<float> data(100);
    rank.fails(fcclAllReduce(data.data(), data.data(), data.size(), fcclFloat32, fcclSum, rank.comm, nullptr),
               fcclRemoteError, "2", "fcclAllReduce");
  });
}

TEST_CASE("autotune: what is measured goes into rank 0's tuning file, and is not measured again from there", "[tune]") {
  const FcclAutotune on("1");
  const ScopedFile file("autotune.json");
  const ScopedVariable path("FCCL_TUNING_FILE", file.path().c_str());
  std::string first;
  {
    RankGroup group(2);
    call(group, 8);
    first = explained(group.comm(0), asked(8));
    CHECK(contains(first, "Tuned, measured at 8 tokens"));
  }
  RankGroup group(2);
  CHECK(explained(group.comm(1), asked(8)) == first);
  call(group, 8);
  CHECK(explained(group.comm(0), asked(8)) == first);
}
