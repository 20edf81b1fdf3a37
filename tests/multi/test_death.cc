// Ranks that die, stop or stay away: all others get an error that names the rank, in time, and can go on without it.
#include <fmt/format.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <regex>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/fused_case.h"
#include "tests/support/process_ranks.h"

using namespace fccl::test;

namespace {

using Clock = std::chrono::steady_clock;

// Collectives without end, until one fails; then the error, destroy, and out.
const RankProgram kStream("stream", [](RankProcess& self) {
  const fcclConfig_t config = testConfig(4096);
  fcclComm_t comm = self.init(&config);
  self.send("ready");
  FusedCase asked;
  asked.hidden = 320;
  asked.tokens = 6;
  if (self.argument == "oneshot") asked.strategy = fcclStrategyOneshot;
  if (self.argument == "twoshot") asked.strategy = fcclStrategyTwoshot;
  FusedProblem problem(asked, self.ranks);
  FusedBuffers own(problem, self.rank, asked.pattern);
  std::vector<float> values(self.argument == "large" ? 3'000'000 : 500, 1.0f);
  for (;;) {
    fcclResult_t result = fcclAllReduceFused(&own.args, comm, nullptr);
    if (result == fcclSuccess) {
      result = fcclAllReduce(values.data(), values.data(), values.size(), fcclFloat32, fcclMax, comm, nullptr);
    }
    if (result == fcclSuccess) continue;
    self.sendResult("failed", result, comm);
    // Sticky: the next call does not wait again.
    const auto begin = Clock::now();
    const fcclResult_t again = fcclAllReduceFused(&own.args, comm, nullptr);
    fcclResult_t async = fcclSuccess;
    fcclCommGetAsyncError(comm, &async);
    const bool quick = Clock::now() - begin < Seconds(0.5);
    self.send(
        fmt::format("again {} {} {}", static_cast<int>(again), static_cast<int>(async), quick ? "quick" : "slow"));
    const fcclResult_t destroyed = fcclCommDestroy(comm);
    self.send(fmt::format("destroyed {}", static_cast<int>(destroyed)));
    return 0;
  }
});

bool names(const std::string& message, int rank) {
  return std::regex_search(message, std::regex(fmt::format("\\brank {}\\b", rank)));
}

void expectRemoteErrors(ProcessRanks& processes, int lost, Clock::time_point since, Seconds limit) {
  for (int rank = 0; rank < processes.size(); ++rank) {
    if (rank == lost) continue;
    const RankResult result = processes.expectResult(rank, "failed", Milliseconds(10'000));
    const Seconds took = Clock::now() - since;
    INFO("rank " << rank << ": " << result.message);
    CHECK(result.result == fcclRemoteError);
    CHECK(names(result.message, lost));
    CHECK(took < limit * slowness());
    CHECK(processes.expect(rank, "again") ==
          fmt::format("{} {} quick", static_cast<int>(fcclRemoteError), static_cast<int>(fcclRemoteError)));
    CHECK(processes.expect(rank, "destroyed") == "0");
    processes.expectExit(rank);
  }
}

void killInStream(int ranks, int victim, const std::string& kind, int afterMs) {
  INFO(kind << ", rank " << victim << " of " << ranks << " killed after " << afterMs << " ms");
  const auto before = fcclNames();
  ProcessRanks processes("stream", ranks, {}, kind);
  processes.relayId();
  processes.expectAll("ready");
  std::this_thread::sleep_for(Milliseconds(afterMs));
  const auto killed = Clock::now();
  processes.signal(victim, SIGKILL);
  expectRemoteErrors(processes, victim, killed, Seconds(2));
  CHECK(fcclLeftovers(before).empty());
}

}  // namespace

TEST_CASE("death: SIGKILL in the middle of collectives", "[death]") {
  killInStream(2, 1, "oneshot", 30);
  killInStream(2, 0, "twoshot", 37);
  killInStream(4, 2, "oneshot", 50);
  killInStream(4, 2, "twoshot", 53);
  killInStream(4, 0, "large", 100);
  killInStream(8, 5, "oneshot", 41);
  killInStream(8, 7, "twoshot", 29);
}

TEST_CASE("death: a stopped rank is named at the time limit", "[death]") {
  ProcessRanks processes("stream", 4, {{"FCCL_TIMEOUT_MS", "2000"}}, "oneshot");
  processes.relayId();
  processes.expectAll("ready");
  std::this_thread::sleep_for(Milliseconds(60));
  const auto stopped = Clock::now();
  processes.signal(2, SIGSTOP);
  expectRemoteErrors(processes, 2, stopped, Seconds(4));
  CHECK(Clock::now() - stopped > Seconds(1.5));  // the limit, not a guess
  // Once it goes on, the late rank gets an error as well.
  processes.signal(2, SIGCONT);
  const RankResult late = processes.expectResult(2, "failed", Milliseconds(10'000));
  INFO(late.message);
  CHECK(late.result == fcclRemoteError);
  processes.expect(2, "again");
  CHECK(processes.expect(2, "destroyed") == "0");
  processes.expectExit(2);
}

namespace {

// All but the last rank call; the last one stays away, alive.
const RankProgram kAbsent("absent", [](RankProcess& self) {
  fcclComm_t comm = self.init();
  if (self.rank == self.ranks - 1) {
    self.send("ready");
    self.receive();
  } else {
    self.send("ready");
    float value = 1;
    const fcclResult_t result = fcclAllReduce(&value, &value, 1, fcclFloat32, fcclSum, comm, nullptr);
    self.sendResult("failed", result, comm);
  }
  return fcclCommDestroy(comm) == fcclSuccess ? 0 : 1;
});

// Rank 1 leaves without destroying its communicator, between two collectives.
const RankProgram kLeaver("leaver", [](RankProcess& self) {
  fcclComm_t comm = self.init();
  float value = 1;
  fcclResult_t result = fcclAllReduce(&value, &value, 1, fcclFloat32, fcclSum, comm, nullptr);
  // Past the leak checker, which would rightly find the communicator that is not given back.
  if (self.rank == 1) std::_Exit(result == fcclSuccess ? 0 : 1);
  if (result == fcclSuccess) result = fcclAllReduce(&value, &value, 1, fcclFloat32, fcclSum, comm, nullptr);
  self.sendResult("failed", result, comm);
  return fcclCommDestroy(comm) == fcclSuccess ? 0 : 1;
});

}  // namespace

TEST_CASE("death: a rank that never calls is named at the time limit", "[death]") {
  ProcessRanks processes("absent", 3, {{"FCCL_TIMEOUT_MS", "1000"}});
  processes.relayId();
  processes.expectAll("ready");
  for (int rank = 0; rank < 2; ++rank) {
    const RankResult result = processes.expectResult(rank, "failed");
    INFO(result.message);
    CHECK(result.result == fcclRemoteError);
    CHECK(names(result.message, 2));
  }
  processes.tell(2, "leave");
  processes.expectAllExit();
}

TEST_CASE("death: a process that ends without a word is noticed like a killed one", "[death]") {
  const auto before = fcclNames();
  ProcessRanks processes("leaver", 3);
  processes.relayId();
  for (const int rank : {0, 2}) {
    const RankResult result = processes.expectResult(rank, "failed", Milliseconds(5'000));
    INFO(result.message);
    CHECK(result.result == fcclRemoteError);
    CHECK(names(result.message, 1));
  }
  processes.expectAllExit();
  CHECK(fcclLeftovers(before).empty());
}
