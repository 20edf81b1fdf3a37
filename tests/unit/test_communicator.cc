// The life of communicators on threads of one process: creation in all its ways, split, several at once, the end.
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/descriptors.h"
#include "tests/support/fused_case.h"
#include "tests/support/process_ranks.h"

using namespace fccl::test;

namespace {

// An all-reduce whose result only these ranks can give.
void smallReduce(const Rank& rank, int count = 100, float offset = 0) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i)
    values[static_cast<size_t>(i)] = offset + static_cast<float>((rank.rank + 1) * (i + 1));
  if (!rank.ok(fcclAllReduce(values.data(), values.data(), values.size(), fcclFloat32, fcclSum, rank.comm, nullptr),
               "all-reduce")) {
    return;
  }
  const auto ranks = static_cast<float>(rank.ranks);
  for (int i = 0; i < count; ++i) {
    const float expected = ranks * offset + ranks * (ranks + 1) / 2 * static_cast<float>(i + 1);
    if (values[static_cast<size_t>(i)] != expected) {
      rank.expect(false, fmt::format("element {} is {}, not {}", i, values[static_cast<size_t>(i)], expected));
      return;
    }
  }
}

size_t threadsOfProcess() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Threads:")) return std::stoul(line.substr(8));
  }
  return 0;
}

}  // namespace

TEST_CASE("communicator: version and error strings", "[communicator]") {
  int version = 0;
  REQUIRE(fcclGetVersion(&version) == fcclSuccess);
  CHECK(version == FCCL_VERSION_CODE);
  std::vector<std::string> texts;
  for (int result = 0; result <= 7; ++result) {
    const char* text = fcclGetErrorString(static_cast<fcclResult_t>(result));
    REQUIRE(text != nullptr);
    for (const std::string& other : texts) CHECK(other != text);
    texts.emplace_back(text);
  }
  fcclResult_t unknown;
  const int number = 1234;
  std::memcpy(&unknown, &number, sizeof(unknown));
  CHECK(fcclGetErrorString(unknown) != nullptr);
  CHECK(fcclGetLastError(nullptr) != nullptr);
}

TEST_CASE("communicator: count, rank and device", "[communicator]") {
  for (const int ranks : {1, 2, 5}) {
    RankGroup group(ranks);
    group.run("queries", [](Rank& rank) {
      int value = -7;
      rank.ok(fcclCommCount(rank.comm, &value), "fcclCommCount");
      rank.expect(value == rank.ranks, "count");
      rank.ok(fcclCommUserRank(rank.comm, &value), "fcclCommUserRank");
      rank.expect(value == rank.rank, "rank");
      rank.ok(fcclCommDevice(rank.comm, &value), "fcclCommDevice");
      rank.expect(value == -1, "device");
      fcclResult_t async = fcclInternalError;
      rank.ok(fcclCommGetAsyncError(rank.comm, &async), "fcclCommGetAsyncError");
      rank.expect(async == fcclSuccess, "no asynchronous error");
      rank.expect(fcclGetLastError(rank.comm) != nullptr, "the last error is never NULL");
    });
  }
}

TEST_CASE("communicator: fcclCommInitAll makes all ranks of one process", "[communicator]") {
  for (const int ranks : {1, 2, 8}) {
    std::vector<fcclComm_t> comms(static_cast<size_t>(ranks));
    const fcclConfig_t config = testConfig();
    REQUIRE(fcclCommInitAll(comms.data(), ranks, &config) == fcclSuccess);
    RankGroup group(comms);
    group.run("after init-all", [](Rank& rank) {
      int number = -1;
      rank.ok(fcclCommUserRank(rank.comm, &number), "rank");
      rank.expect(number == rank.rank, "ranks are in order");
      smallReduce(rank);
    });
  }
}

TEST_CASE("communicator: an id serves once", "[communicator]") {
  // One after the other, and both at the same time: nobody hangs, and whoever fails is told why.
  fcclConfig_t config = testConfig();
  config.initTimeoutMs = static_cast<int>(10'000 * slowness());
  fcclUniqueId id;
  REQUIRE(fcclGetUniqueId(&id) == fcclSuccess);
  std::vector<fcclComm_t> comms(2);
  runThreads(2, "first use", Seconds(30), [&](int rank) {
    if (fcclCommInit(&comms[static_cast<size_t>(rank)], 2, id, rank, &config) != fcclSuccess) std::abort();
  });
  std::vector<std::string> errors(2);
  std::vector<fcclResult_t> results(2);
  const auto begin = std::chrono::steady_clock::now();
  runThreads(2, "second use", Seconds(30), [&](int rank) {
    const auto at = static_cast<size_t>(rank);
    fcclComm_t comm = nullptr;
    results[at] = fcclCommInit(&comm, 2, id, rank, &config);
    errors[at] = fcclGetLastError(nullptr);
  });
  CHECK(std::chrono::steady_clock::now() - begin < Seconds(2) * slowness());
  for (size_t rank = 0; rank < 2; ++rank) {
    INFO("rank " << rank << ": " << errors[rank]);
    CHECK(results[rank] == fcclInvalidUsage);
  }
  RankGroup group(comms);
  group.run("the first communicator still works", [](Rank& rank) { smallReduce(rank); });
}

TEST_CASE("communicator: a rank number twice", "[communicator]") {
  fcclConfig_t config = testConfig();
  config.initTimeoutMs = static_cast<int>(3'000 * slowness());
  fcclUniqueId id;
  REQUIRE(fcclGetUniqueId(&id) == fcclSuccess);
  std::vector<fcclResult_t> results(3);
  std::vector<std::string> errors(3);
  runThreads(3, "ranks 0, 1 and 1 of 3", Seconds(20), [&](int thread) {
    const auto at = static_cast<size_t>(thread);
    fcclComm_t comm = nullptr;
    results[at] = fcclCommInit(&comm, 3, id, thread == 2 ? 1 : thread, &config);
    errors[at] = fcclGetLastError(nullptr);
  });
  for (size_t thread = 0; thread < 3; ++thread) {
    INFO("thread " << thread << ": " << errors[thread]);
    CHECK(results[thread] != fcclSuccess);
  }
}

TEST_CASE("communicator: a missing rank is named", "[communicator]") {
  fcclConfig_t config = testConfig();
  config.initTimeoutMs = 700;
  fcclUniqueId id;
  REQUIRE(fcclGetUniqueId(&id) == fcclSuccess);
  std::vector<std::string> errors(3);
  runThreads(3, "3 of 4 ranks", Seconds(20), [&](int thread) {
    const int rank = thread < 2 ? thread : 3;
    fcclComm_t comm = reinterpret_cast<fcclComm_t>(&id);
    if (fcclCommInit(&comm, 4, id, rank, &config) == fcclSuccess || comm != nullptr) std::abort();
    errors[static_cast<size_t>(thread)] = fcclGetLastError(nullptr);
  });
  INFO(errors[0]);
  CHECK(errors[0].find('2') != std::string::npos);
  CHECK(errors[0].size() > 20);
}

TEST_CASE("communicator: settings that must be equal are compared", "[communicator]") {
  for (const int field : {0, 1, 2}) {
    fcclUniqueId id;
    REQUIRE(fcclGetUniqueId(&id) == fcclSuccess);
    std::vector<fcclResult_t> results(3);
    std::vector<std::string> errors(3);
    runThreads(3, "unequal settings", Seconds(30), [&](int rank) {
      fcclConfig_t config = testConfig(8192);
      if (rank == 1 && field == 0) config.slotBytes = 16384;
      if (rank == 1 && field == 1) config.checkCalls = 1;
      if (rank == 1 && field == 2) config.strategy = fcclStrategyTwoshot;
      fcclComm_t comm = nullptr;
      const auto at = static_cast<size_t>(rank);
      results[at] = fcclCommInit(&comm, 3, id, rank, &config);
      errors[at] = fcclGetLastError(nullptr);
    });
    for (size_t rank = 0; rank < 3; ++rank) {
      INFO("field " << field << ", rank " << rank << ": " << errors[rank]);
      CHECK(results[rank] != fcclSuccess);
      CHECK(results[rank] != fcclInternalError);
      if (field == 0) {
        CHECK(errors[rank].find("8192") != std::string::npos);
        CHECK(errors[rank].find("16384") != std::string::npos);
      }
    }
  }
}

TEST_CASE("communicator: split by color, ordered by key, then by old rank", "[communicator]") {
  RankGroup group(6);
  std::vector<fcclComm_t> parts(6);
  group.run("split", [&](Rank& rank) {
    // Even ranks: keys fall, so the order is reversed. Odd ranks: equal keys. Rank 5 stays out.
    const int color = rank.rank == 5 ? FCCL_SPLIT_NOCOLOR : rank.rank % 2;
    const int key = rank.rank % 2 == 0 ? -rank.rank : 7;
    fcclComm_t part = reinterpret_cast<fcclComm_t>(&group);
    rank.ok(fcclCommSplit(rank.comm, color, key, &part, nullptr), "fcclCommSplit");
    parts[static_cast<size_t>(rank.rank)] = part;
    if (rank.rank == 5) return rank.expect(part == nullptr, "no color, no communicator");
    int number = -1;
    int count = -1;
    rank.ok(fcclCommUserRank(part, &number), "rank");
    rank.ok(fcclCommCount(part, &count), "count");
    const int expected[] = {2, 0, 1, 1, 0};
    rank.expect(number == expected[rank.rank], fmt::format("rank in the part is {}", number));
    rank.expect(count == (rank.rank % 2 == 0 ? 3 : 2), "size of the part");
  });
  group.run("parts and whole", [&](Rank& rank) {
    smallReduce(rank);
    if (rank.rank == 5) return;
    Rank inPart = rank;
    inPart.comm = parts[static_cast<size_t>(rank.rank)];
    fcclCommUserRank(inPart.comm, &inPart.rank);
    fcclCommCount(inPart.comm, &inPart.ranks);
    for (int i = 0; i < 5; ++i) smallReduce(inPart, 300 + i);
    rank.ok(fcclCommDestroy(inPart.comm), "destroy the part");
  });
  group.run("the whole outlives its parts", [](Rank& rank) { smallReduce(rank); });
}

TEST_CASE("communicator: the halves of a split do not wait for each other", "[communicator]") {
  RankGroup group(4);
  std::vector<fcclComm_t> half(4);
  group.run("split", [&](Rank& rank) {
    rank.ok(fcclCommSplit(rank.comm, rank.rank / 2, 0, &half[static_cast<size_t>(rank.rank)], nullptr), "split");
  });
  group.run("one half works while the other sleeps", [&](Rank& rank) {
    Rank inHalf{rank.rank % 2, 2, half[static_cast<size_t>(rank.rank)], rank.failures};
    if (rank.rank / 2 == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 50; ++i) smallReduce(inHalf, 64);
    const auto took = std::chrono::steady_clock::now() - begin;
    rank.expect(took < Seconds(1.2) * slowness(), "the half waited for the other");
    rank.ok(fcclCommDestroy(inHalf.comm), "destroy");
  });
}

TEST_CASE("communicator: bad splits", "[communicator]") {
  RankGroup group(2);
  group.run("bad splits", [](Rank& rank) {
    rank.fails(fcclCommSplit(rank.comm, 0, 0, nullptr, nullptr), fcclInvalidArgument, "newComm", "newComm NULL");
    fcclComm_t part = nullptr;
    rank.fails(fcclCommSplit(rank.comm, -2, 0, &part, nullptr), fcclInvalidArgument, "color", "color -2");
    rank.expect(part == nullptr, "no communicator after an error");
    smallReduce(rank);
  });
}

TEST_CASE("communicator: split by several threads, while collectives run elsewhere", "[communicator]") {
  // Four communicators over the same ranks: on each, one thread per rank splits; all at the same time.
  std::vector<RankGroup> groups;
  for (int i = 0; i < 4; ++i) groups.emplace_back(2);
  Failures failures;
  runThreads(8, "concurrent splits", Seconds(40), [&](int thread) {
    const int which = thread / 2;
    Rank rank{thread % 2, 2, groups[static_cast<size_t>(which)].comm(thread % 2), &failures};
    for (int round = 0; round < 5; ++round) {
      fcclComm_t part = nullptr;
      if (!rank.ok(fcclCommSplit(rank.comm, which, -rank.rank, &part, nullptr), "split")) return;
      Rank inPart{1 - rank.rank, 2, part, &failures};
      smallReduce(inPart);
      smallReduce(rank);
      rank.ok(fcclCommDestroy(part), "destroy");
    }
  });
  if (!failures.none()) FAIL(failures.text());
}

TEST_CASE("communicator: finalize ends collectives", "[communicator]") {
  RankGroup group(2);
  group.run("finalize", [](Rank& rank) {
    smallReduce(rank);
    rank.ok(fcclCommFinalize(rank.comm), "fcclCommFinalize");
    float value = 1;
    rank.fails(fcclAllReduce(&value, &value, 1, fcclFloat32, fcclSum, rank.comm, nullptr), fcclInvalidUsage, "inali",
               "a collective after finalize");
    rank.expect(value == 1, "nothing was moved");
  });
}

TEST_CASE("communicator: two over the same ranks, used alternately, while a third comes and goes", "[communicator]") {
  RankGroup first(4, testConfig(4096));
  RankGroup second(4);
  for (int round = 0; round < 6; ++round) {
    RankGroup third(4);
    Failures failures;
    runThreads(4, "alternating", Seconds(40), [&](int r) {
      const Rank a{r, 4, first.comm(r), &failures};
      const Rank b{r, 4, second.comm(r), &failures};
      const Rank c{r, 4, third.comm(r), &failures};
      for (int i = 0; i < 30; ++i) {
        smallReduce(a, 10 + i);
        smallReduce(b, 3000 - i);
        if (i % 5 == round % 5) smallReduce(c);
      }
    });
    if (!failures.none()) FAIL(failures.text());
  }
}

TEST_CASE("communicator: ranks destroy at different times and in different order", "[communicator]") {
  RankGroup first(3);
  RankGroup second(3);
  runThreads(3, "destroy in any order", Seconds(30), [&](int rank) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300 * rank));
    const auto begin = std::chrono::steady_clock::now();
    RankGroup& before = rank % 2 == 0 ? first : second;
    RankGroup& after = rank % 2 == 0 ? second : first;
    if (fcclCommDestroy(before.comm(rank)) != fcclSuccess) std::abort();
    if (fcclCommDestroy(after.comm(rank)) != fcclSuccess) std::abort();
    // Destroy is local: it waits for nobody.
    if (std::chrono::steady_clock::now() - begin > Seconds(0.25) * slowness()) std::abort();
  });
  for (int rank = 0; rank < 3; ++rank) {
    first.forget(rank);
    second.forget(rank);
  }
}

TEST_CASE("communicator: descriptors, mappings and threads stay the same over many lives", "[communicator]") {
  const auto live = [](int times) {
    for (int i = 0; i < times; ++i) {
      RankGroup group(3, testConfig(4096));
      group.run("use", [](Rank& rank) { smallReduce(rank); });
    }
  };
  live(20);
  const size_t descriptors = openDescriptors();
  const size_t maps = mappedLines();
  const size_t threads = threadsOfProcess();
  live(slowness() > 1 ? 30 : 150);
  CHECK(openDescriptors() == descriptors);
  CHECK(mappedLines() <= maps + 8);  // the heap's own
  CHECK(threadsOfProcess() == threads);
}

TEST_CASE("communicator: descriptors stay the same over failed initialisations", "[communicator]") {
  const auto fail = [](int times) {
    for (int i = 0; i < times; ++i) {
      fcclUniqueId id;
      REQUIRE(fcclGetUniqueId(&id) == fcclSuccess);
      fcclConfig_t config = testConfig();
      config.initTimeoutMs = 30;
      fcclComm_t comm = nullptr;
      REQUIRE(fcclCommInit(&comm, 2, id, 0, &config) != fcclSuccess);
      config.slotBytes = -3;
      REQUIRE(fcclCommInit(&comm, 2, id, 0, &config) == fcclInvalidArgument);
    }
  };
  fail(5);
  const size_t descriptors = openDescriptors();
  const size_t threads = threadsOfProcess();
  fail(40);
  CHECK(openDescriptors() == descriptors);
  CHECK(threadsOfProcess() == threads);
}
