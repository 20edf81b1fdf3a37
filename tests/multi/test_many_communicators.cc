// Communicators that are used at the same time do not starve each other, and an order of calls in which ranks wait for
// each other ends at the time limit.
#include <fmt/format.h>

#include <vector>

#include "tests/support/catch.h"
#include "tests/support/process_ranks.h"
#include "tests/support/thread_ranks.h"

using namespace fccl::test;

namespace {

constexpr int kCommunicators = 16;

// One call of communicator `which`; empty, or what went wrong.
std::string callOnce(fcclComm_t comm, int rank, int ranks, int which, int round) {
  float value = static_cast<float>((rank + 1) * (which + 1) + round);
  float want = 0;
  for (int r = 0; r < ranks; ++r) want += static_cast<float>((r + 1) * (which + 1) + round);
  if (fcclAllReduce(&value, &value, 1, fcclFloat32, fcclSum, comm, nullptr) != fcclSuccess)
    return fcclGetLastError(comm);
  return value == want ? "" : fmt::format("communicator {}, round {}: {} in place of {}", which, round, value, want);
}

// Makes 16 communicators over the same ranks and uses them as the argument says. Answers "calls <first error or
// nothing>".
const RankProgram kMany("many-communicators", [](RankProcess& self) {
  const fcclConfig_t config = testConfig(4096);
  fcclComm_t parent = self.init(&config);
  std::vector<fcclComm_t> comms(kCommunicators);
  for (fcclComm_t& comm : comms) {
    if (fcclCommSplit(parent, 0, self.rank, &comm, nullptr) != fcclSuccess) return 2;
  }
  self.send("ready");
  std::string wrong;
  if (self.argument == "threads") {
    // A thread for each: 32 of them spin for each other on a few cores.
    Failures failures;
    runThreads(kCommunicators, "a thread per communicator", Seconds(60), [&](int which) {
      for (int round = 0; round < 100; ++round) {
        const std::string here = callOnce(comms[static_cast<size_t>(which)], self.rank, self.ranks, which, round);
        if (!here.empty()) return failures.add(here);
      }
    });
    if (!failures.none()) wrong = failures.text();
  } else {
    const bool backwards = self.argument == "reversed" && self.rank == 1;
    for (int i = 0; i < kCommunicators && wrong.empty(); ++i) {
      const int which = backwards ? kCommunicators - 1 - i : i;
      wrong = callOnce(comms[static_cast<size_t>(which)], self.rank, self.ranks, which, 0);
    }
  }
  self.send("calls " + wrong);
  for (fcclComm_t comm : comms) {
    if (fcclCommDestroy(comm) != fcclSuccess) return 1;
  }
  return fcclCommDestroy(parent) == fcclSuccess ? 0 : 1;
});

// What each rank says of its calls.
std::vector<std::string> useMany(const std::string& how, const Environment& environment) {
  const auto before = fcclNames();
  std::vector<std::string> said;
  {
    ProcessRanks processes("many-communicators", 2, environment, how);
    processes.relayId();
    processes.expectAll("ready");
    for (int rank = 0; rank < 2; ++rank) said.push_back(processes.expect(rank, "calls", Milliseconds(60'000)));
    processes.expectAllExit();
  }
  CHECK(fcclLeftovers(before).empty());
  return said;
}

}  // namespace

TEST_CASE("many communicators: 16 at the same time, a thread each, do not starve each other", "[communicator]") {
  for (const std::string& wrong : useMany("threads", {})) CHECK(wrong == "");
}

TEST_CASE("many communicators: one thread, the same order on all ranks", "[communicator]") {
  for (const std::string& wrong : useMany("in order", {})) CHECK(wrong == "");
}

TEST_CASE("many communicators: one thread, another order on another rank ends at the time limit", "[communicator]") {
  const std::vector<std::string> said = useMany("reversed", {{"FCCL_TIMEOUT_MS", "500"}});
  for (size_t rank = 0; rank < 2; ++rank) {
    INFO("rank " << rank << ": " << said[rank]);
    CHECK(said[rank].find(fmt::format("rank {}", 1 - rank)) != std::string::npos);
  }
}
