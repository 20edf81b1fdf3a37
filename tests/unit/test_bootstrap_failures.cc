// A group of which a rank leaves, dies, stays away, aborts or calls something else: every other rank is told.
#include <thread>

#include "tests/support/bootstrap_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/text.h"
#include "transport/bootstrap.h"
#include "transport/bootstrap_test_hooks.h"

using namespace fccl;
using namespace fccl::test;
using std::chrono::milliseconds;

TEST_CASE("a rank that goes away is named on every other rank") {
  for (const int gone : {0, 3}) {
    BootstrapGroup group = connectRanks(6, newId());
    REQUIRE(group.text() == "");
    Failures failures;
    const auto start = std::chrono::steady_clock::now();
    group.members[static_cast<size_t>(gone)].reset();
    group.run("a rank is gone", [&](Bootstrap& bootstrap) {
      for (int attempt = 0; attempt < 2; ++attempt) {
        const Status status = bootstrap.barrier();
        if (status.code() != fcclRemoteError || !contains(status.message(), fmt::format("rank {} closed", gone))) {
          failures.add(
              fmt::format("rank {}: ({}) {}", bootstrap.rank(), static_cast<int>(status.code()), status.message()));
        }
      }
    });
    CHECK(failures.text() == "0 failures");
    CHECK(secondsSince(start) < 2 * slowness());
  }
}

TEST_CASE("a rank that does not call is named at the time limit") {
  BootstrapGroup group = connectRanks(5, newId(), bootstrapOptions(milliseconds(1'000)));
  REQUIRE(group.text() == "");
  Failures failures;
  group.run("rank 2 is late", [&](Bootstrap& bootstrap) {
    if (bootstrap.rank() == 2) std::this_thread::sleep_for(Seconds(1.5) * slowness());
    Status status = bootstrap.barrier();
    // The late one may find all blocks of that barrier waiting for it; it hears of the failure in the next.
    if (bootstrap.rank() == 2 && status.ok()) status = bootstrap.barrier();
    if (status.code() != fcclRemoteError || !contains(status.message(), "rank 2 has not arrived within")) {
      failures.add(fmt::format("rank {}: {}", bootstrap.rank(), status.message()));
    }
  });
  CHECK(failures.text() == "0 failures");
}

TEST_CASE("calls that do not fit are an error on every rank") {
  BootstrapGroup group = connectRanks(4, newId());
  REQUIRE(group.text() == "");
  Failures failures;
  group.run("misfit", [&](Bootstrap& bootstrap) {
    std::vector<char> all(size_t{4} * 200'000);
    const Status status = bootstrap.allGather(all.data(), bootstrap.rank() == 2 ? 200'000 : 100'000);
    if (status.code() != fcclInvalidUsage || !contains(status.message(), "of 200000 bytes") ||
        !contains(status.message(), "of 100000 bytes")) {
      failures.add(fmt::format("rank {}: {}", bootstrap.rank(), status.message()));
    }
  });
  CHECK(failures.text() == "0 failures");
}

TEST_CASE("a rank that leaves after an error has told the others why") {
  for (const int ranks : {2, 5}) {
    BootstrapGroup group = connectRanks(ranks, newId());
    REQUIRE(group.text() == "");
    Failures failures;
    group.run("misfit, then leave", [&](Bootstrap& bootstrap) {
      const int rank = bootstrap.rank();
      std::vector<char> all(static_cast<size_t>(ranks) * 100'000);
      const Status status = rank == 1 ? bootstrap.barrier() : bootstrap.allGather(all.data(), 100'000);
      if (status.code() != fcclInvalidUsage || !contains(status.message(), "in barrier number")) {
        failures.add(fmt::format("rank {}: {}", rank, status.message()));
      }
      group.members[static_cast<size_t>(rank)].reset();
    });
    CHECK(failures.text() == "0 failures");
  }
}

TEST_CASE("abort wakes a call that is under way and tells the others") {
  BootstrapGroup group = connectRanks(4, newId());
  REQUIRE(group.text() == "");
  Failures failures;
  const auto start = std::chrono::steady_clock::now();
  runThreads(4, "abort", Seconds(20), [&](int rank) {
    Bootstrap& bootstrap = *group.members[static_cast<size_t>(rank)];
    if (rank == 3) {  // does not call; aborts rank 1 from here, twice
      std::this_thread::sleep_for(milliseconds(200));
      group.members[1]->abort();
      group.members[1]->abort();
      return;
    }
    const Status status = bootstrap.barrier();
    const bool own = rank == 1;
    if (status.code() != (own ? fcclInvalidUsage : fcclRemoteError)) failures.add(status.message());
    if (!contains(status.message(), own ? "aborted" : "rank 1 closed")) failures.add(status.message());
    if (own && bootstrap.agree({}).code() != fcclInvalidUsage) failures.add("a later call succeeds");
  });
  CHECK(failures.text() == "0 failures");
  CHECK(secondsSince(start) < 2 * slowness());
  auto alone = Bootstrap::connect(newId(), 0, 1, bootstrapOptions());
  REQUIRE(alone.ok());
  CHECK(alone.value()->barrier().ok());
  alone.value()->abort();
  CHECK(alone.value()->barrier().code() == fcclInvalidUsage);
}

TEST_CASE("a rank that dies while the group forms leaves nobody waiting") {
  struct Death {};
  for (const BootstrapStep step :
       {BootstrapStep::kRingConnect, BootstrapStep::kRingAccept, BootstrapStep::kRingCheck}) {
    for (const int dead : {0, 2}) {
      BootstrapTestHooks hooks;
      hooks.before = [&](int rank, BootstrapStep at) {
        if (rank == dead && at == step) throw Death();  // all it holds is closed, as by its process's end
      };
      BootstrapOptions options = bootstrapOptions();
      options.hooks = &hooks;
      const fcclUniqueId id = newId();
      const auto start = std::chrono::steady_clock::now();
      const BootstrapGroup group = connectWith(4, "death", [&](int rank) -> Result<std::unique_ptr<Bootstrap>> {
        try {
          return Bootstrap::connect(id, rank, 4, options);
        } catch (const Death&) {
          return Status(fcclInProgress, "died");
        }
      });
      CAPTURE(static_cast<int>(step), dead, group.text());
      CHECK(secondsSince(start) < 3 * slowness());
      for (int rank = 0; rank < 4; ++rank) {
        CHECK(group.statuses[static_cast<size_t>(rank)].code() == (rank == dead ? fcclInProgress : fcclRemoteError));
      }
    }
  }
}
