#include "tests/support/shared_bootstrap.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

namespace fccl::test {

struct SharedGroup::State {
  std::atomic<uint32_t> generation{0};
  std::atomic<uint32_t> arrived{0};
  std::atomic<bool> broken{false};

  // Two areas in turn: a rank writes the next call's block only after all have left the call before the last.
  char* block(uint32_t call, int ranks, int rank) {
    const size_t index = (call % 2) * static_cast<size_t>(ranks) + static_cast<size_t>(rank);
    return reinterpret_cast<char*>(this + 1) + index * kMaxBytes;
  }
};

namespace {

class SharedBootstrap final : public Bootstrap {
 public:
  SharedBootstrap(SharedGroup::State* state, int rank, int ranks, std::chrono::milliseconds timeout,
                  std::function<void(int)> beforeCall)
      : state_(state), rank_(rank), ranks_(ranks), timeout_(timeout), beforeCall_(std::move(beforeCall)) {}

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }

  Status allGather(void* all, size_t bytes) override {
    if (beforeCall_) beforeCall_(static_cast<int>(calls_));
    if (bytes > SharedGroup::kMaxBytes) std::abort();
    char* blocks = static_cast<char*>(all);
    std::memcpy(state_->block(calls_, ranks_, rank_), blocks + static_cast<size_t>(rank_) * bytes, bytes);
    if (Status status = meet(); !status.ok()) return status;
    for (int r = 0; r < ranks_; ++r) {
      std::memcpy(blocks + static_cast<size_t>(r) * bytes, state_->block(calls_, ranks_, r), bytes);
    }
    ++calls_;
    return {};
  }

  Status barrier() override {
    char nothing[SharedGroup::kMaxBytes];
    return allGather(nothing, 0);
  }

  Status agree(const Status& mine) override {
    struct Report {
      int32_t code;
      char text[SharedGroup::kMaxBytes - 8];
    };
    Report report{mine.code(), {}};
    std::strncpy(report.text, mine.message().c_str(), sizeof report.text - 1);
    const Result<std::vector<Report>> reports = exchange(report);
    if (!reports.ok()) return reports.status();
    for (int r = 0; r < ranks_; ++r) {
      const Report& theirs = reports.value()[static_cast<size_t>(r)];
      if (theirs.code == fcclSuccess) continue;
      if (r == rank_) return mine;
      return failure(static_cast<fcclResult_t>(theirs.code), "rank {}: {}", r, theirs.text);
    }
    return {};
  }

  void abort() override { state_->broken.store(true, std::memory_order_release); }

 private:
  Status meet() {
    const auto end = std::chrono::steady_clock::now() + timeout_;
    const uint32_t generation = state_->generation.load(std::memory_order_acquire);
    // acq_rel: the last to arrive has seen every block, and the release of the generation hands that on.
    if (state_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(ranks_)) {
      state_->arrived.store(0, std::memory_order_relaxed);
      state_->generation.store(generation + 1, std::memory_order_release);
      return {};
    }
    for (int turn = 0; state_->generation.load(std::memory_order_acquire) == generation; ++turn) {
      if (state_->broken.load(std::memory_order_acquire)) return failure(fcclSystemError, "the bootstrap is broken");
      if (std::chrono::steady_clock::now() > end) {
        state_->broken.store(true, std::memory_order_release);
        return failure(fcclSystemError, "a rank is missing");
      }
      if (turn < 100) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }
    // A race checker does not see that another process has handed on what a thread of this one released here.
    (void)state_->arrived.load(std::memory_order_acquire);
    return {};
  }

  SharedGroup::State* state_;
  int rank_;
  int ranks_;
  std::chrono::milliseconds timeout_;
  std::function<void(int)> beforeCall_;
  uint32_t calls_ = 0;
};

}  // namespace

SharedGroup::SharedGroup(int ranks)
    : mapped_(sizeof(State) + 2 * static_cast<size_t>(ranks) * kMaxBytes), ranks_(ranks) {
  void* made = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) std::abort();
  state_ = new (made) State;
}

SharedGroup::~SharedGroup() { ::munmap(state_, mapped_); }

void SharedGroup::breakUp() { state_->broken.store(true, std::memory_order_release); }

std::unique_ptr<Bootstrap> SharedGroup::member(int rank, std::chrono::milliseconds timeout,
                                               std::function<void(int)> beforeCall) {
  return std::make_unique<SharedBootstrap>(state_, rank, ranks_, timeout, std::move(beforeCall));
}

}  // namespace fccl::test
