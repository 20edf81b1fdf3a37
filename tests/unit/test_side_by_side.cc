// Calls for several ranks at once where the system gives too few threads: nobody is left waiting for a rank that never
// begins.
#include <atomic>
#include <string>

#include "base/side_by_side.h"
#include "tests/support/catch.h"
#include "tests/support/descriptors.h"
#include "tests/support/text.h"
#include "tests/support/thread_ranks.h"

using namespace fccl;
using namespace fccl::test;

namespace {

class MostThreads {
 public:
  explicit MostThreads(size_t most) : before_(mostThreads()) { mostThreads() = most; }
  ~MostThreads() { mostThreads() = before_; }
  MostThreads(const MostThreads&) = delete;
  MostThreads& operator=(const MostThreads&) = delete;

 private:
  const size_t before_;
};

constexpr int kRanks = 4;

}  // namespace

TEST_CASE("side by side: all run at the same time, after what comes before", "[side_by_side]") {
  for (const size_t count : {size_t{1}, size_t{2}, size_t{5}}) {
    bool prepared = false;
    std::atomic<size_t> inside{0};
    std::vector<std::atomic<int>> calls(count);
    const Status status = runSideBySide(
        count,
        [&]() -> Status {
          prepared = true;
          return {};
        },
        [&](size_t i) {
          if (prepared) calls[i]++;
          inside++;
          while (inside < count) std::this_thread::yield();
        });
    CHECK(status.ok());
    for (const std::atomic<int>& each : calls) CHECK(each == 1);
  }
}

TEST_CASE("side by side: none runs where a thread cannot be started, or what comes before fails", "[side_by_side]") {
  std::atomic<int> calls{0};
  const auto body = [&](size_t) { calls++; };
  for (const size_t most : {size_t{0}, size_t{1}, size_t{3}}) {
    const MostThreads limit(most);
    bool prepared = false;
    const Status status = runSideBySide(
        5,
        [&]() -> Status {
          prepared = true;
          return {};
        },
        body);
    CHECK(status.code() == fcclSystemError);
    INFO(status.message());
    CHECK(contains(status.message(), "It takes 4 threads beside the calling one"));
    CHECK(contains(status.message(), fmt::format("no more than {}:", most)));
    CHECK(contains(status.message(), "ulimit -u"));
    CHECK(contains(status.message(), "pids.max"));
    CHECK_FALSE(prepared);
  }
  const Status failed = runSideBySide(
      3, [] { return failure(fcclInternalError, "as it should"); }, body);
  CHECK(failed.message() == "as it should");
  CHECK(calls == 0);
}

TEST_CASE("side by side: fcclCommInitAll makes all ranks or none", "[side_by_side]") {
  const fcclConfig_t config = testConfig();
  std::vector<fcclComm_t> comms(kRanks, reinterpret_cast<fcclComm_t>(&comms));
  const size_t open = openDescriptors();
  {
    const MostThreads limit(2);
    CHECK(fcclCommInitAll(comms.data(), kRanks, &config) == fcclSystemError);
    const std::string sentence = fcclGetLastError(nullptr);
    INFO(sentence);
    CHECK(contains(sentence, "fcclCommInitAll: It takes 3 threads beside the calling one"));
  }
  for (fcclComm_t comm : comms) CHECK(comm == nullptr);
  CHECK(openDescriptors() == open);
  REQUIRE(fcclCommInitAll(comms.data(), kRanks, &config) == fcclSuccess);
  RankGroup group(comms);
}

TEST_CASE("side by side: a group is carried out whole or not at all", "[side_by_side]") {
  const fcclConfig_t config = testConfig();
  fcclUniqueId id;
  REQUIRE(fcclGetUniqueId(&id) == fcclSuccess);
  std::vector<fcclComm_t> comms(kRanks);
  const auto init = [&] {
    REQUIRE(fcclGroupStart() == fcclSuccess);
    for (int r = 0; r < kRanks; ++r) {
      REQUIRE(fcclCommInit(&comms[static_cast<size_t>(r)], kRanks, id, r, &config) == fcclSuccess);
    }
    return fcclGroupEnd();
  };
  {
    const MostThreads limit(2);
    CHECK(init() == fcclSystemError);
    const std::string sentence = fcclGetLastError(nullptr);
    INFO(sentence);
    CHECK(contains(sentence, "Nothing of the group was carried out: It takes 3 threads"));
    for (fcclComm_t comm : comms) CHECK(comm == nullptr);
  }
  // Nothing has been carried out: the id, which serves once, still serves.
  REQUIRE(init() == fcclSuccess);
  RankGroup group(comms);

  int32_t values[kRanks] = {1, 2, 3, 4};
  const auto reduce = [&] {
    REQUIRE(fcclGroupStart() == fcclSuccess);
    for (int r = 0; r < kRanks; ++r) {
      REQUIRE(fcclAllReduce(&values[r], &values[r], 1, fcclInt32, fcclSum, group.comm(r), nullptr) == fcclSuccess);
    }
    return fcclGroupEnd();
  };
  {
    const MostThreads limit(2);
    CHECK(reduce() == fcclSystemError);
    for (int r = 0; r < kRanks; ++r) CHECK(values[r] == r + 1);
  }
  CHECK(reduce() == fcclSuccess);
  for (const int32_t value : values) CHECK(value == 10);
}
