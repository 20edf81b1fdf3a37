#include "kernels/host/wait.h"

#include <sched.h>
#include <time.h>

#include "kernels/host/sentinel.h"

namespace fccl::host {
namespace {

using Clock = std::chrono::steady_clock;

void pauseOnce() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// One wait. step() passes time, first spinning, then giving the core away, then sleeping, and looks around for reasons
// to give up; false: give up.
class Patience {
 public:
  Patience(World& world, int peer) : world_(world), peer_(peer) {}

  bool step() {
    if (world_.failure.kind != FailureKind::kNone) return false;
    if (spins_ < world_.wait.pauses) {
      spins_++;
      pauseOnce();
      return true;
    }
    if (yields_ % kYieldsPerLook == 0 && !lookAround()) return false;
    yields_++;
    if (sleeping_) {
      const timespec nap{0, 50'000};
      nanosleep(&nap, nullptr);
    } else {
      sched_yield();
    }
    return true;
  }

 private:
  static constexpr unsigned kYieldsPerLook = 16;
  static constexpr auto kSleepAfter = std::chrono::milliseconds(1);
  static constexpr auto kAliveEvery = std::chrono::milliseconds(20);

  bool lookAround() {
    for (int r = 0; r < world_.ranks; r++) {
      // Acquire: nothing depends on it but that the reason is read no later than what the wait then reports.
      if (world_.control(r).ended.value.load(std::memory_order_acquire) == kRunning) continue;
      return fail(r == world_.rank ? FailureKind::kAbortedHere : FailureKind::kPeerAborted, r);
    }
    const Clock::time_point now = Clock::now();
    if (begin_ == Clock::time_point{}) {
      begin_ = now;
      nextAlive_ = now + kAliveEvery;
      return true;
    }
    if (now - begin_ >= kSleepAfter) sleeping_ = true;
    if (now >= nextAlive_) {
      nextAlive_ = now + kAliveEvery;
      // Any rank, not only the one waited for: that one may itself wait for a dead rank.
      for (int r = 0; r < world_.ranks; r++) {
        if (r == world_.rank) continue;
        if (const Failure end = endOf(world_, r); end.kind != FailureKind::kNone) return fail(end.kind, r);
      }
    }
    if (world_.wait.timeout.count() != 0 && now - begin_ >= world_.wait.timeout)
      return fail(FailureKind::kTimeout, peer_);
    return true;
  }

  bool fail(FailureKind kind, int rank) {
    world_.failure = Failure{kind, rank};
    return false;
  }

  World& world_;
  int peer_;
  int spins_ = 0;
  unsigned yields_ = 0;
  bool sleeping_ = false;
  Clock::time_point begin_{};
  Clock::time_point nextAlive_{};
};

}  // namespace

Failure endOf(const World& world, int peer) {
  if (world.alive == nullptr || world.alive(world.aliveContext, peer)) return {};
  // Its last words may have come between the two looks: it was there to give up, then left.
  // Acquire: pairs with the release of the peer, for the reason.
  const bool silent = world.control(peer).ended.value.load(std::memory_order_acquire) == kRunning;
  return {silent ? FailureKind::kPeerDied : FailureKind::kPeerAborted, peer};
}

__attribute__((cold)) bool awaitFlagSlow(World& world, int peer, const Flag& flag, uint32_t target) {
  Patience patience(world, peer);
  // Acquire: as in awaitFlag.
  while (!reached(flag.value.load(std::memory_order_acquire), target)) {
    if (!patience.step()) return reached(flag.value.load(std::memory_order_acquire), target);
  }
  return true;
}

__attribute__((cold)) bool awaitWordsSlow(World& world, int peer, const void* p, size_t bytes) {
  Patience patience(world, peer);
  const auto* words = static_cast<const uint32_t*>(p);
  for (size_t i = 0; i < bytes / 4; i++) {
    // Relaxed: the word is its own flag; nothing else is read on the strength of it.
    while (__atomic_load_n(words + i, __ATOMIC_RELAXED) == kSentinel) {
      if (!patience.step()) return false;
    }
  }
  return true;
}

}  // namespace fccl::host
