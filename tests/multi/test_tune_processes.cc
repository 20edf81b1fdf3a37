// fcclCommTune between processes: all agree, and a second run takes what the first has kept.
#include <string>
#include <vector>

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
