// A thread that looks after what happens while nobody is inside a call.
#pragma once

#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

namespace fccl {

class Watcher {
 public:
  // Calls `look` every `period` until it returns false, or the watcher is destroyed, which waits for a call that is
  // under way. `look` throws nothing.
  Watcher(std::chrono::milliseconds period, std::function<bool()> look) {
    // The program's signals are for its own threads: a thread begins with the mask of the one that starts it.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::jthread([period, look = std::move(look)](const std::stop_token& stop) {
        std::mutex mutex;
        std::condition_variable_any wake;
        std::unique_lock lock(mutex);
        do {
          if (wake.wait_for(lock, stop, period, [] { return false; }) || stop.stop_requested()) return;
        } while (look());
      });
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

 private:
  std::jthread thread_;
};

}  // namespace fccl
