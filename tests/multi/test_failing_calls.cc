// Every system call of an initialisation fails once, in turn: either it can be done without, or every rank gets an
// error with a sentence, nothing is left behind, and the same processes can initialise afterwards.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/descriptors.h"
#include "tests/support/failing_calls.h"
#include "tests/support/process_ranks.h"
#include "tests/support/thread_ranks.h"

using namespace fccl::test;

namespace {

// How long the others wait for a rank that has failed before it could tell them.
constexpr int kPatienceMs = 60;

// What kind of end a communicator had that came to be in spite of a failing call. The last word of an initialisation
// can be lost like any other: who has it has a communicator, whose first call then tells what happened.
std::string useAndDestroy(fcclComm_t comm, int rank, int ranks) {
  float value = static_cast<float>(rank + 1);
  std::string end = "used";
  const fcclResult_t result = fcclAllReduce(&value, &value, 1, fcclFloat32, fcclSum, comm, nullptr);
  if (result == fcclSuccess) {
    float want = 0;
    for (int r = 0; r < ranks; ++r) want += static_cast<float>(r + 1);
    if (value != want) end = fmt::format("WRONG: the sum is {}", value);
  } else {
    end = fmt::format("{}: {}", result == fcclRemoteError ? "told late" : "WRONG", fcclGetLastError(comm));
  }
  return fcclCommDestroy(comm) == fcclSuccess ? end : "WRONG: fcclCommDestroy failed";
}

bool isSentence(const std::string& message) {
  return message.size() > 20 && message.find(' ') != std::string::npos && message != "no error";
}

// Rounds on request: "round N MS" lets the N-th call of an initialisation fail on the victim (0: none), which is the
// rank in the argument, and answers "done <result> <calls> <failed call> <descriptors> <mappings> <how it ended>".
const RankProgram kFailing("failing-calls", [](RankProcess& self) {
  const bool victim = self.rank == std::stoi(self.argument);
  for (;;) {
    std::istringstream order(self.receive());
    std::string word;
    int n = 0;
    int patience = 0;
    order >> word >> n >> patience;
    if (word != "round") return 0;
    const fcclUniqueId id = self.exchangeId();
    fcclConfig_t config = testConfig(4096);
    config.initTimeoutMs = patience;
    fcclComm_t comm = nullptr;
    if (victim) failCall(n);
    const fcclResult_t result = fcclCommInit(&comm, self.ranks, id, self.rank, &config);
    const CallsMade calls = victim ? endFailing() : CallsMade();
    std::string end = fcclGetLastError(nullptr);
    if (result == fcclSuccess) {
      end = useAndDestroy(comm, self.rank, self.ranks);
    } else if (comm != nullptr) {
      end = "WRONG: there is an error and a communicator";
    } else if (!isSentence(end)) {
      end = fmt::format("WRONG: no sentence: {}", end);
    }
    self.send(fmt::format("done {} {} {} {} {} {}", static_cast<int>(result), calls.count,
                          calls.failed.empty() ? "-" : calls.failed, openDescriptors(), mappedLines(), end));
  }
});

struct Answer {
  int result = -1;
  int calls = 0;
  std::string failed;
  size_t descriptors = 0;
  size_t mappings = 0;
  std::string end;
};

class FailingRanks {
 public:
  FailingRanks(int ranks, int victim, const Environment& environment)
      : processes_("failing-calls", ranks, environment, std::to_string(victim)), victim_(victim) {}
  ~FailingRanks() { processes_.tellAll("leave"); }

  // Lets the n-th call fail and checks what must be so in any case. Returns the victim's answer.
  Answer round(int n, int patienceMs) {
    processes_.tellAll(fmt::format("round {} {}", n, patienceMs));
    processes_.relayId();
    std::vector<Answer> answers;
    for (int rank = 0; rank < processes_.size(); ++rank) {
      std::istringstream text(processes_.expect(rank, "done"));
      Answer& answer = answers.emplace_back();
      text >> answer.result >> answer.calls >> answer.failed >> answer.descriptors >> answer.mappings;
      std::getline(text >> std::ws, answer.end);
    }
    const bool all =
        std::all_of(answers.begin(), answers.end(), [](const Answer& a) { return a.result == fcclSuccess; });
    const Answer& victim = answers[static_cast<size_t>(victim_)];
    for (int rank = 0; rank < processes_.size(); ++rank) {
      const Answer& answer = answers[static_cast<size_t>(rank)];
      INFO("call " << n << " (" << victim.failed << ") of rank " << victim_ << " failed, rank " << rank << " got "
                   << answer.result << ": " << answer.end);
      CHECK(answer.end.find("WRONG") == std::string::npos);
      if (answer.result == fcclSuccess) CHECK(answer.end.starts_with(all ? "used" : "told late"));
      if (n == 0) CHECK(answer.result == fcclSuccess);
    }
    last_ = answers;
    return victim;
  }

  const std::vector<Answer>& last() const { return last_; }

 private:
  ProcessRanks processes_;
  int victim_;
  std::vector<Answer> last_;
};

void failEachCall(int victim, const char* provider, int step) {
  INFO("FCCL_SHARED_MEMORY=" << provider);
  const auto names = fcclNames();
  {
    const int patience = static_cast<int>(kPatienceMs * slowness());
    FailingRanks ranks(2, victim, {{"FCCL_SHARED_MEMORY", provider}});
    ranks.round(0, 20'000);
    const int calls = ranks.round(0, 20'000).calls;
    const std::vector<Answer> before = ranks.last();
    REQUIRE(calls > 20);
    int errors = 0;
    std::set<std::string> failed;
    // The calls differ from round to round by a few looks at a socket.
    for (int n = 1; n <= calls; n += step) {
      const Answer answer = ranks.round(n, patience);
      errors += answer.result != fcclSuccess;
      failed.insert(answer.failed);
    }
    CHECK(errors > 5);
    CHECK(failed.size() > 5);
    ranks.round(0, 20'000);
    for (size_t rank = 0; rank < 2; ++rank) {
      INFO("rank " << rank);
      CHECK(ranks.last()[rank].descriptors == before[rank].descriptors);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)     // whose memory grows with what they have seen
      CHECK(ranks.last()[rank].mappings <= before[rank].mappings + 8);  // the heap's own
#endif
    }
  }
  CHECK(fcclLeftovers(names).empty());
}

}  // namespace

TEST_CASE("failing calls: each call of an initialisation once, memfd", "[faults]") {
  for (const int victim : {0, 1}) failEachCall(victim, "memfd", slowness() > 1 ? 7 : 1);
}

TEST_CASE("failing calls: each call of an initialisation once, /dev/shm", "[faults]") {
  // Every second call: most are those of the bootstrap, as above.
  for (const int victim : {0, 1}) failEachCall(victim, "posix", slowness() > 1 ? 8 : 2);
}
