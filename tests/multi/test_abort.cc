// fcclCommAbort from another thread: the waiting call returns, and so do the peers'.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <regex>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/fused_case.h"
#include "tests/support/process_ranks.h"

using namespace fccl::test;

namespace {

using Clock = std::chrono::steady_clock;

bool names(const std::string& message, int rank) {
  return std::regex_search(message, std::regex(fmt::format("\\brank {}\\b", rank)));
}

// Waits in a collective that cannot end, since rank 0 never calls it.
fcclResult_t waitForEver(fcclComm_t comm, const std::string& kind) {
  std::vector<float> values(kind == "large" ? 300'000 : 64, 1.0f);
  if (kind != "fused") {
    return fcclAllReduce(values.data(), values.data(), values.size(), fcclFloat32, fcclSum, comm, nullptr);
  }
  std::vector<float> output(64);
  fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
  args.pattern = fcclPatternRmsNorm;
  args.dtype = fcclFloat32;
  args.tokens = 1;
  args.hidden = 64;
  args.input = args.weight = values.data();
  args.normOut = output.data();
  return fcclAllReduceFused(&args, comm, nullptr);
}

// Rank 1 waits and is aborted by a thread of its own process; rank 2 waits too.
const RankProgram kAborted("aborted", [](RankProcess& self) {
  const fcclConfig_t config = testConfig(4096);
  fcclComm_t comm = self.init(&config);
  self.send("ready");
  if (self.rank == 0) {
    self.receive();
    // Whatever stood in the slots when the peer aborted, a call cannot go on for ever as if nothing had been.
    fcclResult_t result = fcclSuccess;
    for (int i = 0; i < 2 && result == fcclSuccess; ++i) result = waitForEver(comm, self.argument);
    self.sendResult("failed", result, comm);
    return fcclCommDestroy(comm) == fcclSuccess ? 0 : 1;
  }
  if (self.rank == 1) {
    fcclResult_t waited = fcclInProgress;
    std::thread waiting([&] { waited = waitForEver(comm, self.argument); });
    self.receive();
    const auto begin = Clock::now();
    const fcclResult_t aborted = fcclCommAbort(comm);
    waiting.join();
    const std::chrono::duration<double, std::milli> took = Clock::now() - begin;
    self.send(fmt::format("aborted {} {} {:.0f}", static_cast<int>(aborted), static_cast<int>(waited), took.count()));
    return 0;
  }
  const fcclResult_t result = waitForEver(comm, self.argument);
  self.sendResult("failed", result, comm);
  return fcclCommDestroy(comm) == fcclSuccess ? 0 : 1;
});

}  // namespace

TEST_CASE("abort: frees a waiting call in time, peers are told who", "[abort]") {
  for (const char* kind : {"plain", "fused", "large"}) {
    INFO(kind);
    ProcessRanks processes("aborted", 3, {}, kind);
    processes.relayId();
    processes.expectAll("ready");
    std::this_thread::sleep_for(Milliseconds(150));
    processes.tell(1, "abort");
    const std::string said = processes.expect(1, "aborted", Milliseconds(10'000));
    int aborted = -1;
    int waited = -1;
    int took = -1;
    REQUIRE(std::sscanf(said.c_str(), "%d %d %d", &aborted, &waited, &took) == 3);
    CHECK(aborted == fcclSuccess);
    CHECK(waited == fcclInvalidUsage);
    CHECK(took < 1000 * slowness());
    const RankResult second = processes.expectResult(2, "failed", Milliseconds(2'000));
    INFO(second.message);
    CHECK(second.result == fcclRemoteError);
    CHECK(names(second.message, 1));
    processes.tell(0, "call");
    const RankResult zeroth = processes.expectResult(0, "failed", Milliseconds(2'000));
    INFO(zeroth.message);
    CHECK(zeroth.result == fcclRemoteError);
    CHECK(names(zeroth.message, 1));
    processes.expectAllExit();
  }
}

TEST_CASE("abort: on threads, again and again", "[abort]") {
  for (int round = 0; round < 10; ++round) {
    RankGroup group(3, testConfig(4096));
    Failures failures;
    std::atomic<bool> waiting{false};
    // Threads 0..2 drive the ranks, thread 3 aborts rank 1; rank 0 never calls.
    runThreads(4, "abort on threads", Seconds(20), [&](int thread) {
      if (thread == 0) return;
      if (thread == 3) {
        while (!waiting) std::this_thread::yield();
        // Long enough for rank 1 to be in its call: after the abort it may not use comm any more.
        std::this_thread::sleep_for(Milliseconds(30 + 3 * round));
        if (fcclCommAbort(group.comm(1)) != fcclSuccess) failures.add("fcclCommAbort failed");
        return;
      }
      if (thread == 1) waiting = true;
      const fcclResult_t result = waitForEver(group.comm(thread), "plain");
      const fcclResult_t wanted = thread == 1 ? fcclInvalidUsage : fcclRemoteError;
      if (result != wanted) failures.add(fmt::format("rank {}: result {}", thread, static_cast<int>(result)));
      if (thread == 2 && !names(fcclGetLastError(group.comm(2)), 1)) failures.add(fcclGetLastError(group.comm(2)));
    });
    group.forget(1);
    if (!failures.none()) FAIL(failures.text());
  }
}

TEST_CASE("abort: without a call under way", "[abort]") {
  RankGroup group(2);
  REQUIRE(fcclCommAbort(group.comm(0)) == fcclSuccess);
  group.forget(0);
  float value = 1;
  CHECK(fcclAllReduce(&value, &value, 1, fcclFloat32, fcclSum, group.comm(1), nullptr) == fcclRemoteError);
  fcclResult_t async = fcclSuccess;
  CHECK(fcclCommGetAsyncError(group.comm(1), &async) == fcclSuccess);
  CHECK(async == fcclRemoteError);
}
