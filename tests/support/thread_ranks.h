// Ranks as threads: a communicator of N ranks, driven by one thread each, every run under a wall-clock limit.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "fccl.h"

namespace fccl::test {

using Seconds = std::chrono::duration<double>;

inline double secondsSince(std::chrono::steady_clock::time_point start) {
  return Seconds(std::chrono::steady_clock::now() - start).count();
}

// How much longer things may take in this build (sanitizers).
double slowness();

// An fcclConfig_t for HOST with the initializer's values, a time limit that turns a hang into an error before the
// watchdog ends the program, and slots of `slotBytes` (0: the library's own choice).
fcclConfig_t testConfig(int slotBytes = 0);

// What went wrong on any thread. Catch's assertions may only be used on the main thread, so ranks write here.
class Failures {
 public:
  void add(std::string text);
  bool none() const;
  // All of them (the first 20), one per line.
  std::string text() const;
  void clear();

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> texts_;
  size_t total_ = 0;
};

// What the body of a rank is given.
struct Rank {
  int rank;
  int ranks;
  fcclComm_t comm;
  Failures* failures;

  void expect(bool condition, std::string_view what) const;
  // The result is fcclSuccess; else what fcclGetLastError says is reported.
  bool ok(fcclResult_t result, std::string_view what) const;
  // The result is `wanted`, and the last error mentions each of `words` (separated by '|', all must be there).
  void fails(fcclResult_t result, fcclResult_t wanted, std::string_view words, std::string_view what) const;
};

// Runs `body(rank)` on `ranks` threads. At the limit it prints the test's name and the ranks that are still inside, and
// aborts the program: a thread that hangs cannot be taken back.
void runThreads(int ranks, std::string_view what, Seconds limit, const std::function<void(int rank)>& body);

class RankGroup {
 public:
  // Initialises through fcclGetUniqueId and fcclCommInit on threads; a failure fails the test.
  explicit RankGroup(int ranks, const fcclConfig_t& config = testConfig());
  // Takes over communicators that exist already.
  explicit RankGroup(std::vector<fcclComm_t> comms) : comms_(std::move(comms)) {}
  RankGroup(RankGroup&& other) noexcept { comms_.swap(other.comms_); }
  // Destroys the communicators, each on a thread of its own.
  ~RankGroup();

  int ranks() const { return static_cast<int>(comms_.size()); }
  fcclComm_t comm(int rank) const { return comms_[static_cast<size_t>(rank)]; }
  // The communicator of a rank is destroyed or aborted elsewhere.
  void forget(int rank) { comms_[static_cast<size_t>(rank)] = nullptr; }

  // Runs the body on all ranks; what it reports fails the test.
  void run(std::string_view what, const std::function<void(Rank&)>& body, Seconds limit = Seconds(40));

 private:
  std::vector<fcclComm_t> comms_;
};

// One unique id, fcclCommInit on `ranks` threads. `comms` and `results` per rank; nothing is asserted.
void initRanks(int ranks, const fcclConfig_t& config, std::vector<fcclComm_t>* comms,
               std::vector<fcclResult_t>* results, std::vector<std::string>* errors = nullptr);

}  // namespace fccl::test
