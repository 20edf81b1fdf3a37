// Ranks as processes: the test program starts itself again, once per rank, and talks with each over a socket, in lines.
// A test defines what a rank does and steers the ranks from outside:
//
//   const RankProgram kStream("stream", [](RankProcess& self) { ...; self.send("ready"); ...; return 0; });
//   TEST_CASE(...) { ProcessRanks ranks("stream", 4); ranks.relayId(); ranks.expect(0, "ready"); ranks.kill(2,
//   SIGKILL); }
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "fccl.h"

namespace fccl::test {

using Environment = std::map<std::string, std::string>;
using Milliseconds = std::chrono::milliseconds;

// A line-wise end of a socket.
class LineChannel {
 public:
  explicit LineChannel(int fd = -1) : fd_(fd) {}
  LineChannel(LineChannel&& other) noexcept;
  LineChannel& operator=(LineChannel&& other) noexcept;
  ~LineChannel();

  // False where the other end is gone.
  bool send(std::string_view line);
  // 1: a line, 0: the time is over, -1: the other end is gone.
  int receive(std::string* line, Milliseconds limit);

 private:
  int fd_ = -1;
  std::string pending_;
};

// What a rank program is given.
class RankProcess {
 public:
  RankProcess(int rank, int ranks, std::string argument, LineChannel channel)
      : rank(rank), ranks(ranks), argument(std::move(argument)), channel_(std::move(channel)) {}

  const int rank;
  const int ranks;
  const std::string argument;

  void send(std::string_view line) { channel_.send(line); }
  // The next line of the test; ends the process where there is none in time.
  std::string receive(Milliseconds limit = Milliseconds(30'000));
  // Rank 0 makes an id and sends it up; all receive it. The test calls relayId().
  fcclUniqueId exchangeId();
  // exchangeId and fcclCommInit, with NULL on HOST; where that fails, sends "failed ..." and ends the process with 3.
  fcclComm_t init(const fcclConfig_t* config = nullptr);
  // "<word> <result> <last error, in one line>"
  void sendResult(std::string_view word, fcclResult_t result, fcclComm_t comm);

 private:
  LineChannel channel_;
};

// Registers a program under a name, as a static object of a test file. Its result is the exit status.
class RankProgram {
 public:
  using Body = int (*)(RankProcess&);
  RankProgram(const char* name, Body body);
};

// The answer of a rank to sendResult.
struct RankResult {
  fcclResult_t result = fcclInProgress;
  std::string message;
};

// The test's side. Every failure is a Catch failure; the destructor kills what still runs.
class ProcessRanks {
 public:
  ProcessRanks(const std::string& program, int ranks, const Environment& environment = {},
               const std::string& argument = "");
  ProcessRanks(const ProcessRanks&) = delete;
  ProcessRanks& operator=(const ProcessRanks&) = delete;
  ~ProcessRanks();

  int size() const { return static_cast<int>(processes_.size()); }
  pid_t pid(int rank) const { return processes_[static_cast<size_t>(rank)].pid; }

  void relayId();
  void tell(int rank, std::string_view line);
  void tellAll(std::string_view line);
  // The rank's next line must begin with `word`; returns what follows it.
  std::string expect(int rank, std::string_view word, Milliseconds limit = Milliseconds(30'000));
  void expectAll(std::string_view word, Milliseconds limit = Milliseconds(30'000));
  RankResult expectResult(int rank, std::string_view word, Milliseconds limit = Milliseconds(30'000));
  // Sends a signal to a rank's process; SIGKILL reaps it.
  void signal(int rank, int number);
  // Waits until the rank ends by itself. Its exit status; the negative number of the signal that ended it.
  int waitExit(int rank, Milliseconds limit = Milliseconds(30'000));
  // The rank ends by itself, with this status.
  void expectExit(int rank, int status = 0, Milliseconds limit = Milliseconds(30'000));
  void expectAllExit(int status = 0);

 private:
  struct Process {
    pid_t pid = -1;
    LineChannel channel;
  };
  std::vector<Process> processes_;
};

// Names of FCCL's files in /dev/shm and of its abstract sockets.
std::set<std::string> fcclNames();
// What has come to fcclNames() since `before` and does not go away within some seconds (other tests may be running).
std::set<std::string> fcclLeftovers(const std::set<std::string>& before);

}  // namespace fccl::test
