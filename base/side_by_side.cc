#include "base/side_by_side.h"

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/check.h"

namespace fccl {
namespace {

// Threads wait here until it is known whether all of them exist.
class Gate {
 public:
  // False: go home.
  bool wait() {
    std::unique_lock lock(mutex_);
    said_.wait(lock, [this] { return open_ || closed_; });
    return open_;
  }
  void open() { say(&open_); }
  void close() { say(&closed_); }

 private:
  void say(bool* what) {
    {
      const std::lock_guard lock(mutex_);
      *what = true;
    }
    said_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable said_;
  bool open_ = false;
  bool closed_ = false;
};

// Closes the gate unless it is open, before the threads are waited for.
class Started {
 public:
  explicit Started(size_t count) { threads_.reserve(count); }
  ~Started() { gate_.close(); }
  Started(const Started&) = delete;
  Started& operator=(const Started&) = delete;

  template <class Body>
  void add(Body&& body) {
    if (threads_.size() >= mostThreads()) {
      throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
    }
    threads_.emplace_back([this, body = std::forward<Body>(body)] {
      if (gate_.wait()) body();
    });
  }
  void release() { gate_.open(); }

 private:
  Gate gate_;
  std::vector<std::jthread> threads_;  // ended before the gate goes
};

}  // namespace

size_t& mostThreads() {
  static size_t most = SIZE_MAX;
  return most;
}

Status runSideBySide(size_t count, const std::function<Status()>& before, const std::function<void(size_t)>& body) {
  const size_t others = count - 1;
  Started started(others);
  for (size_t i = 0; i < others; i++) {
    try {
      started.add([&body, i] { body(i); });
    } catch (const std::system_error& error) {
      return failure(fcclSystemError,
                     "It takes {} thread{} beside the calling one, and the system gives no more than {}: {}. Raise the "
                     "limit of threads (ulimit -u, pids.max of the cgroup), or end others.",
                     others, others == 1 ? "" : "s", i, error.code().message());
    }
  }
  FCCL_TRY(before());
  started.release();
  body(others);
  return {};
}

}  // namespace fccl
