#include "tests/perf/ping.h"

#include <sched.h>

#include <array>
#include <chrono>
#include <limits>
#include <stdexcept>
#include <thread>

#include "tests/perf/ranks.h"
#include "tests/perf/timing.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fccl::perf {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBatches = 15;
constexpr int kRoundTrips = 200;  // per batch
constexpr int kSpins = 4000;      // before the core is offered to others: the partner may need this very core
constexpr auto kDeadline = std::chrono::seconds(30);

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// The acquire pairs with the partner's release store; only the number itself is passed on.
void awaitAtLeast(const std::atomic<uint64_t>& flag, uint64_t value) {
  for (int spin = 0; spin < kSpins; spin++) {
    if (flag.load(std::memory_order_acquire) >= value) return;
    pause();
  }
  const Clock::time_point start = Clock::now();
  while (flag.load(std::memory_order_acquire) < value) {
    if (Clock::now() - start > kDeadline) throw std::runtime_error("the flag ping got no answer within 30 s");
    sched_yield();
  }
}

void sleepUntilAtLeast(const std::atomic<uint64_t>& flag, uint64_t value) {
  const Clock::time_point start = Clock::now();
  while (flag.load(std::memory_order_acquire) < value) {
    if (Clock::now() - start > kDeadline) throw std::runtime_error("ranks 0 and 1 did not end their flag ping in 30 s");
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

}  // namespace

double measurePing(Ranks& ranks) {
  if (ranks.count() < 2) return std::numeric_limits<double>::quiet_NaN();
  PingCell& cell = ranks.pingCell();
  // Read before the barrier: rank 0 changes them only after it.
  const uint64_t base = cell.ping.load(std::memory_order_relaxed);
  const uint64_t finished = cell.finished.load(std::memory_order_relaxed) + 1;
  ranks.barrier();
  double oneWayNs = 0;
  if (ranks.rank() == 0) {
    std::array<double, kBatches> batches{};
    uint64_t number = base;
    for (double& batch : batches) {
      const Clock::time_point start = Clock::now();
      for (int i = 0; i < kRoundTrips; i++) {
        number++;
        cell.ping.store(number, std::memory_order_release);
        awaitAtLeast(cell.pong, number);
      }
      batch = std::chrono::duration<double, std::nano>(Clock::now() - start).count() / (2.0 * kRoundTrips);
    }
    oneWayNs = median(batches);
    cell.finished.store(finished, std::memory_order_release);
  } else if (ranks.rank() == 1) {
    const uint64_t last = base + uint64_t{kBatches} * kRoundTrips;
    for (uint64_t number = base + 1; number <= last; number++) {
      awaitAtLeast(cell.ping, number);
      cell.pong.store(number, std::memory_order_release);
    }
  } else {
    sleepUntilAtLeast(cell.finished, finished);
  }
  ranks.maximum(std::span<double>(&oneWayNs, 1));
  return oneWayNs;
}

}  // namespace fccl::perf
