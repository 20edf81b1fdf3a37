// Ranks that only have a Bootstrap, as threads or as forked processes, for tests of the transport. A rank's body
// returns what went wrong, or nothing. Forking needs a test program that has no threads of its own at that moment.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/shared_bootstrap.h"

namespace fccl::test {

using RankBody = std::function<std::string(int rank, Bootstrap& bootstrap)>;

// What the ranks report, "rank N: ..." line by line; empty: all is well.
std::string runOnThreads(int ranks, const RankBody& body, std::chrono::milliseconds timeout = std::chrono::seconds(20));

// Runs a body in a forked process and returns what it reports, or how the process ended. Killed at the limit.
std::string runInChild(const std::function<std::string()>& body, std::chrono::seconds limit = std::chrono::seconds(40));

struct RankReport;

// Processes, each with one or more ranks as threads.
class ForkedRanks {
 public:
  struct Options {
    std::chrono::milliseconds timeout = std::chrono::seconds(20);  // of the bootstrap
    std::function<void(int rank, int call)> beforeCall;            // as SharedGroup::member's
    std::function<std::string(int process)> setup;                 // in the process, before its ranks run
  };

  ForkedRanks(const std::vector<std::vector<int>>& processes, const RankBody& body, Options options);
  ForkedRanks(const std::vector<std::vector<int>>& processes, const RankBody& body)
      : ForkedRanks(processes, body, Options()) {}
  ForkedRanks(const ForkedRanks&) = delete;
  ForkedRanks& operator=(const ForkedRanks&) = delete;
  // Kills what still runs.
  ~ForkedRanks();

  pid_t pid(int process) const { return pids_[static_cast<size_t>(process)]; }
  void kill(int process, int signal) const;
  // Waits for all; the reports of those that ended by themselves, and a line for each that a signal ended which kill()
  // did not send, or that the limit cut off. A death by signal breaks the bootstrap; the dead stay zombies until all
  // have ended.
  std::string wait(std::chrono::seconds limit = std::chrono::seconds(40));

 private:
  SharedGroup group_;
  RankReport* reports_;
  std::vector<pid_t> pids_;
  mutable std::vector<bool> killed_;
};

// One rank per process.
std::vector<std::vector<int>> oneRankEach(int ranks);

// Open descriptors and mappings of this process.
struct Footprint {
  size_t descriptors;
  size_t mappings;
};
Footprint footprint();

}  // namespace fccl::test
