#include "tests/perf/ranks.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <thread>
#include <vector>

namespace fccl::perf {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kSleepAfter = std::chrono::milliseconds(2);
constexpr auto kDeadline = std::chrono::minutes(10);  // a case in between must not last longer

// What the threads share.
class Meeting {
 public:
  explicit Meeting(int count) : count_(count), slots_(static_cast<size_t>(count)) {}

  void wait() {
    const unsigned round = round_.load(std::memory_order_relaxed);  // cannot move on before this thread has arrived
    // acq_rel: the last to arrive sees what all others wrote before, and its release below hands all of it on.
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
      arrived_.store(0, std::memory_order_relaxed);  // ordered before the next arrival by the release of round_
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    const Clock::time_point start = Clock::now();
    while (round_.load(std::memory_order_acquire) == round) {  // pairs with the release above
      const auto waited = Clock::now() - start;
      if (waited > kDeadline) throw std::runtime_error("the other ranks did not arrive within ten minutes");
      if (waited < kSleepAfter) {
        sched_yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
  }

  std::vector<std::span<double>>& slots() { return slots_; }
  fcclUniqueId& id() { return id_; }
  PingCell& pingCell() { return pingCell_; }

 private:
  const int count_;
  std::atomic<int> arrived_{0};
  std::atomic<unsigned> round_{0};
  std::vector<std::span<double>> slots_;
  fcclUniqueId id_{};
  PingCell pingCell_;
};

class ThreadRanks final : public Ranks {
 public:
  ThreadRanks(Meeting& meeting, int rank, int count) : meeting_(meeting), rank_(rank), count_(count) {}

  int rank() const override { return rank_; }
  int count() const override { return count_; }
  const char* kind() const override { return "threads"; }
  void barrier() override { meeting_.wait(); }

  void maximum(std::span<double> values) override {
    combine(values, [](double a, double b) { return a > b ? a : b; });
  }

  double sum(double value) override {
    combine(std::span<double>(&value, 1), [](double a, double b) { return a + b; });
    return value;
  }

  PingCell& pingCell() override { return meeting_.pingCell(); }

  fcclComm_t createCommunicator(const fcclConfig_t& config) override {
    // Not fcclCommInitAll: each thread has a core of its own by now (--pin), which FCCL is to see.
    if (rank_ == 0) require(fcclGetUniqueId(&meeting_.id()), "fcclGetUniqueId", nullptr);
    meeting_.wait();
    fcclComm_t comm = nullptr;
    require(fcclCommInit(&comm, count_, meeting_.id(), rank_, &config), "fcclCommInit", nullptr);
    return comm;
  }

 private:
  template <class Function>
  void combine(std::span<double> values, Function function) {
    meeting_.slots()[static_cast<size_t>(rank_)] = values;
    meeting_.wait();
    std::vector<double> result(values.size());
    for (size_t i = 0; i < values.size(); i++) {
      result[i] = meeting_.slots()[0][i];
      for (int r = 1; r < count_; r++) result[i] = function(result[i], meeting_.slots()[static_cast<size_t>(r)][i]);
    }
    meeting_.wait();  // all have read
    std::copy(result.begin(), result.end(), values.begin());
  }

  Meeting& meeting_;
  const int rank_;
  const int count_;
};

}  // namespace

void require(fcclResult_t result, const char* call, fcclComm_t comm) {
  if (result == fcclSuccess) return;
  throw std::runtime_error(fmt::format("{}: {}: {}", call, fcclGetErrorString(result), fcclGetLastError(comm)));
}

void runAsThreads(int count, const std::function<void(Ranks&)>& body) {
  Meeting meeting(count);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < count; rank++) {
    threads.emplace_back([&meeting, &body, rank, count] {
      try {
        ThreadRanks ranks(meeting, rank, count);
        body(ranks);
      } catch (const std::exception& error) {
        fmt::print(stderr, "fccl-perf: rank {}: {}\n", rank, error.what());
        std::fflush(nullptr);
        _exit(1);
      }
    });
  }
}

}  // namespace fccl::perf
