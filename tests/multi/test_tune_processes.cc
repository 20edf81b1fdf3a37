// fcclCommTune between processes: all agree, and a rank that dies or aborts meanwhile keeps no other waiting.
#include <fmt/format.h>
#include <signal.h>

#include <string>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/process_ranks.h"
#include "tests/support/scoped_file.h"
#include "tests/support/text.h"
#include "tests/support/thread_ranks.h"

using namespace fccl::test;

namespace {

std::vector<fcclQuery_t> queries(int64_t most) {
  std::vector<fcclQuery_t> all;
  for (int64_t tokens = 1; tokens <= most; tokens *= 2) {
    fcclQuery_t query = FCCL_QUERY_INITIALIZER;
    query.pattern = fcclPatternResidualRmsNorm;
    query.tokens = tokens;
    query.hidden = 2048;
    all.push_back(query);
  }
  return all;
}

// Tunes and tells its explanation of the last call, in one line.
const RankProgram kTune("tune", [](RankProcess& self) {
  const fcclConfig_t config = testConfig();
  fcclComm_t comm = self.init(&config);
  const std::vector<fcclQuery_t> all = queries(64);
  self.sendResult("tuned", fcclCommTune(comm, all.data(), static_cast<int>(all.size()), 0), comm);
  std::string text(16384, '\0');
  fcclExplain(comm, &all.back(), text.data(), text.size());
  text.resize(std::string_view(text.c_str()).size());
  for (char& c : text) c = c == '\n' ? '|' : c;
  self.send("explained " + text);
  return fcclCommDestroy(comm) == fcclSuccess ? 0 : 1;
});

// Tunes ever more, until that fails.
const RankProgram kTuneForEver("tuneForEver", [](RankProcess& self) {
  const fcclConfig_t config = testConfig();
  fcclComm_t comm = self.init(&config);
  std::thread aborting;
  self.send("ready");
  if (self.rank == 1 && self.argument == "abort") {
    aborting = std::thread([&self, comm] {
      self.receive();
      fcclCommAbort(comm);
    });
  }
  fcclResult_t result = fcclSuccess;
  for (int64_t hidden = 64; result == fcclSuccess; hidden += 16) {
    std::vector<fcclQuery_t> all = queries(64);
    for (fcclQuery_t& query : all) query.hidden = hidden;
    result = fcclCommTune(comm, all.data(), static_cast<int>(all.size()), 0);
  }
  if (aborting.joinable()) {
    aborting.join();
    self.send(fmt::format("failed {} aborted", static_cast<int>(result)));
    return 0;
  }
  self.sendResult("failed", result, comm);
  return fcclCommDestroy(comm) == fcclSuccess ? 0 : 1;
});

}  // namespace

TEST_CASE("tune in processes: all decide alike, and the file is there", "[tune]") {
  const ScopedFile file("tune-processes.json");
  for (int turn = 0; turn < 2; turn++) {
    ProcessRanks ranks("tune", 4, {{"FCCL_TUNING_FILE", file.path()}});
    ranks.relayId();
    std::string first;
    for (int r = 0; r < 4; r++) {
      const RankResult result = ranks.expectResult(r, "tuned");
      INFO(result.message);
      CHECK(result.result == fcclSuccess);
      const std::string text = ranks.expect(r, "explained");
      CHECK(contains(text, "Tuned, measured at 64 tokens: ONESHOT"));
      if (r == 0) first = text;
      CHECK(text == first);
    }
    ranks.expectAllExit();
    CHECK(contains(file.read(), "\"size\": 64"));
  }
}

TEST_CASE("tune in processes: a rank that is killed meanwhile is an error of the others", "[tune]") {
  for (const int victim : {0, 1, 2}) {
    INFO("victim " << victim);
    const auto before = fcclNames();
    ProcessRanks ranks("tuneForEver", 3, {{"FCCL_INIT_TIMEOUT_MS", "20000"}});
    ranks.relayId();
    ranks.expectAll("ready");
    std::this_thread::sleep_for(Milliseconds(100 + 37 * victim));
    ranks.signal(victim, SIGKILL);
    for (int r = 0; r < 3; r++) {
      if (r == victim) continue;
      const RankResult result = ranks.expectResult(r, "failed", Milliseconds(15'000));
      INFO(result.message);
      CHECK((result.result == fcclRemoteError || result.result == fcclSystemError));
      CHECK(contains(result.message, fmt::format("ank {}", victim)));
      ranks.expectExit(r);
    }
    CHECK(fcclLeftovers(before).empty());
  }
}

TEST_CASE("tune in processes: a rank that is aborted meanwhile is an error of the others", "[tune]") {
  ProcessRanks ranks("tuneForEver", 3, {{"FCCL_INIT_TIMEOUT_MS", "20000"}}, "abort");
  ranks.relayId();
  ranks.expectAll("ready");
  std::this_thread::sleep_for(Milliseconds(150));
  ranks.tell(1, "abort");
  for (const int r : {0, 2}) {
    const RankResult result = ranks.expectResult(r, "failed", Milliseconds(15'000));
    INFO(result.message);
    CHECK(result.result != fcclSuccess);
    ranks.expectExit(r);
  }
  CHECK(contains(ranks.expect(1, "failed"), "aborted"));
  ranks.expectExit(1);
}
