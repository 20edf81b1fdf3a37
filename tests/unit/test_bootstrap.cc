// The bootstrap's collectives, and groups that form as they should.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <numeric>
#include <thread>

#include "tests/support/bootstrap_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/descriptors.h"
#include "tests/support/text.h"
#include "transport/bootstrap.h"
#include "transport/rendezvous.h"

using namespace fccl;
using namespace fccl::test;
using std::chrono::milliseconds;

namespace {

// Connects rank 0 in a forked process and rank 1 here. Whether both came up.
bool connectAcrossFork(const fcclUniqueId& id) {
  const auto connects = [&](int rank) {
    const auto result = Bootstrap::connect(id, rank, 2, bootstrapOptions());
    return result.ok() && result.value()->barrier().ok();
  };
  const pid_t pid = fork();
  if (pid == 0) _exit(connects(0) ? 0 : 1);
  const bool own = connects(1);
  int status = 0;
  waitpid(pid, &status, 0);
  return own && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

TEST_CASE("missing ranks are folded into ranges") {
  CHECK(foldRanges(std::vector<int>{}) == "");
  CHECK(foldRanges(std::vector<int>{3}) == "3");
  CHECK(foldRanges(std::vector<int>{3, 4}) == "3, 4");
  CHECK(foldRanges(std::vector<int>{3, 7, 8, 9, 10, 11, 12}) == "3, 7-12");
  std::vector<int> odd(500);
  for (size_t i = 0; i < odd.size(); ++i) odd[i] = static_cast<int>(2 * i + 1);
  CHECK(foldRanges(odd, 20) == "1, 3, 5, 7, 9, 11 and 494 more");
}

TEST_CASE("bad arguments are refused") {
  const fcclUniqueId id = newId();
  for (const auto& [rank, ranks] : {std::pair(0, 0), {0, -1}, {-1, 2}, {2, 2}}) {
    const auto result = Bootstrap::connect(id, rank, ranks, bootstrapOptions());
    REQUIRE(!result.ok());
    CHECK(result.status().code() == fcclInvalidArgument);
  }
  BootstrapOptions options;
  options.timeout = milliseconds(-1);
  CHECK(Bootstrap::connect(id, 0, 1, options).status().code() == fcclInvalidArgument);
  CHECK(Bootstrap::connect(id, 0, 1, bootstrapOptions()).ok());
}

TEST_CASE("all-gather, barrier and agreement on 1, 2, 3 and 8 ranks") {
  for (const int ranks : {1, 2, 3, 8}) {
    CAPTURE(ranks);
    BootstrapGroup group = connectRanks(ranks, newId());
    REQUIRE(group.text() == "");
    Failures failures;
    std::atomic<int> entered{0};
    group.run("collectives", [&](Bootstrap& bootstrap) {
      if (bootstrap.ranks() != ranks) failures.add("wrong number of ranks");
      int round = 0;
      for (const size_t bytes : {0, 1, 8, 24, 1000, 65'536, 300'001})
        checkAllGather(bootstrap, bytes, ++round, &failures);
      const auto numbers = bootstrap.exchange(bootstrap.rank() * 3 + 1);
      for (int r = 0; numbers.ok() && r < ranks; ++r) {
        if (numbers.value()[static_cast<size_t>(r)] != r * 3 + 1) failures.add("exchange");
      }
      entered.fetch_add(1, std::memory_order_relaxed);
      if (!bootstrap.barrier().ok()) failures.add("barrier");
      if (entered.load(std::memory_order_relaxed) != ranks) failures.add("a rank left the barrier early");

      if (!bootstrap.agree({}).ok()) failures.add("agreement of successes");
      // Each rank in turn, then all but rank 0.
      for (int bad = 0; bad < ranks; ++bad) {
        const std::string text = fmt::format("no {}", bad);
        const bool mine = bootstrap.rank() == bad;
        const Status status = bootstrap.agree(mine ? Status(fcclInvalidArgument, text) : Status());
        const std::string wanted = mine ? text : fmt::format("rank {}: {}", bad, text);
        if (status.code() != fcclInvalidArgument || status.message() != wanted) failures.add(status.message());
      }
      const std::string endless(5'000, 'x');
      const Status status = bootstrap.agree(bootstrap.rank() == 0 ? Status() : Status(fcclSystemError, endless));
      if (ranks == 1 && !status.ok()) failures.add(status.message());
      if (ranks > 1 && status.code() != fcclSystemError) failures.add("lowest of several");
      if (ranks > 1 && bootstrap.rank() != 1 && status.message() != "rank 1: " + endless.substr(0, 1000)) {
        failures.add("not cut at 1000: " + status.message());
      }
      checkAllGather(bootstrap, 64, ++round, &failures);
    });
    CHECK(failures.text() == "0 failures");
  }
}

TEST_CASE("256 ranks come up and gather") {
  const auto start = std::chrono::steady_clock::now();
  BootstrapGroup group = connectRanks(256, newId());
  REQUIRE(group.text() == "");
  UNSCOPED_INFO("connected after " << secondsSince(start) << " s");
  Failures failures;
  group.run("collectives", [&](Bootstrap& bootstrap) {
    checkAllGather(bootstrap, 40, 1, &failures);
    if (!bootstrap.agree({}).ok()) failures.add("agree");
  });
  CHECK(failures.text() == "0 failures");
  CHECK(secondsSince(start) < 20 * slowness());
}

TEST_CASE("1000 ranks come up and gather", "[.soak]") {
  BootstrapGroup group = connectRanks(1000, newId(), bootstrapOptions(milliseconds(60'000)), Seconds(100));
  REQUIRE(group.text() == "");
  Failures failures;
  group.run(
      "collectives",
      [&](Bootstrap& bootstrap) {
        checkAllGather(bootstrap, 40, 1, &failures);
        if (!bootstrap.barrier().ok()) failures.add("barrier");
      },
      Seconds(100));
  CHECK(failures.text() == "0 failures");
}

TEST_CASE("two groups at once do not wait for each other") {
  const fcclUniqueId ids[2] = {newId(), newId()};
  Failures failures;
  std::atomic<int> firstDone{0};
  // The second group starts only when the first is through with everything.
  runThreads(8, "two groups", Seconds(30), [&](int thread) {
    const int half = thread / 4;
    while (half == 1 && firstDone.load(std::memory_order_relaxed) < 4) std::this_thread::sleep_for(milliseconds(1));
    auto result = Bootstrap::connect(ids[half], thread % 4, 4, bootstrapOptions());
    if (!result.ok()) return failures.add(result.status().message());
    for (int round = 0; round < 5; ++round) checkAllGather(*result.value(), 100, round + 10 * half, &failures);
    if (half == 0) firstDone.fetch_add(1, std::memory_order_relaxed);
  });
  CHECK(failures.text() == "0 failures");
}

TEST_CASE("ranks that start late are waited for") {
  const fcclUniqueId id = newId();
  for (const int late : {0, 2}) {
    const fcclUniqueId each = late == 0 ? id : newId();
    const BootstrapGroup group = connectWith(3, "late start", [&](int rank) {
      if (rank == late) std::this_thread::sleep_for(milliseconds(400));
      return Bootstrap::connect(each, rank, 3, bootstrapOptions());
    });
    CHECK(group.text() == "");
  }
}

TEST_CASE("a rank may leave as soon as it has everything") {
  for (int round = 0; round < 30; ++round) {
    BootstrapGroup group = connectRanks(5, newId());
    REQUIRE(group.text() == "");
    Failures failures;
    group.run("leave early", [&](Bootstrap& bootstrap) {
      const int rank = bootstrap.rank();
      if (rank == round % 5) std::this_thread::sleep_for(milliseconds(5));
      checkAllGather(bootstrap, 20'000, round, &failures);
      group.members[static_cast<size_t>(rank)].reset();
    });
    CHECK(failures.text() == "0 failures");
  }
}

TEST_CASE("a forked process may be rank 0 of an id made before the fork") {
  const fcclUniqueId id = newId();
  CHECK(connectAcrossFork(id));
  // The id is spent, though this process still has a descriptor of the listener.
  const Status status = Bootstrap::connect(id, 1, 2, bootstrapOptions()).status();
  CHECK(status.code() == fcclInvalidUsage);
  CHECK(contains(status.message(), "already used"));
}

TEST_CASE("no descriptor is left behind") {
  connectRanks(4, newId());
  const size_t before = openDescriptors();
  for (int round = 0; round < 5; ++round) {
    CHECK(connectRanks(4, newId()).text() == "");
    const fcclUniqueId twice = newId();
    connectWith(3, "fails",
                [&](int rank) { return Bootstrap::connect(twice, rank == 2 ? 1 : rank, 3, bootstrapOptions()); });
    const fcclUniqueId missing = newId();
    connectWith(2, "fails",
                [&](int rank) { return Bootstrap::connect(missing, rank, 3, bootstrapOptions(milliseconds(50))); });
  }
  CHECK(openDescriptors() == before);
}
