// The struct behind fcclComm_t: what can be looked at safely before a handle is trusted, and who is inside.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "lib/communicator.h"

struct fcclComm {
  static constexpr uint64_t kLive = 0xfcc1c033c0331ec7u;

  std::atomic<uint64_t> magic{kLive};
  // True while a thread is in a collective; stays true once the handle has ended.
  std::atomic<bool> inside{false};
  // Threads that ask it something, beside the one inside.
  std::atomic<int> asking{0};
  std::unique_ptr<fccl::Communicator> communicator;
};

namespace fccl {

fcclComm_t makeHandle(std::unique_ptr<Communicator> communicator);

// fcclInvalidArgument for NULL and for what is no handle (any more).
Status checkHandle(fcclComm_t comm);

// Frees the communicator, as soon as nobody asks it anything. The struct itself stays readable for a while, so that a
// second use of the handle is an error and not undefined. `comm` must have been ended by endHandle().
void freeHandle(fcclComm_t comm);

// From now on `comm` is no handle. False where it already was none: of two threads that end it, one wins.
bool endHandle(fcclComm_t comm);

// The right of one thread to be inside a collective of `comm`.
class Inside {
 public:
  // Fails with fcclInvalidUsage where another thread is inside.
  explicit Inside(fcclComm_t comm) : comm_(comm) {
    // Acquire: pairs with the release of the thread that was inside before, so that its state of the communicator is
    // seen.
    entered_ = !comm->inside.exchange(true, std::memory_order_acquire);
  }
  ~Inside() {
    // Release: the next thread inside, or the one that frees the communicator, sees all that happened here.
    if (entered_) comm_->inside.store(false, std::memory_order_release);
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

  bool entered() const { return entered_; }
  // Nobody may enter any more.
  void keep() { entered_ = false; }

 private:
  fcclComm_t comm_;
  bool entered_;
};

// The right of any number of threads to ask `comm` something, which is not freed meanwhile.
class Asking {
 public:
  explicit Asking(fcclComm_t comm) : comm_(comm) {
    // Sequentially consistent, as are the end of the handle and the look at this count that follow each other in who
    // frees it: either this thread sees that the handle has ended, or the other sees this thread.
    comm->asking.fetch_add(1, std::memory_order_seq_cst);
    live_ = comm->magic.load(std::memory_order_seq_cst) == fcclComm::kLive;
  }
  // Release: who frees the communicator does so after all that happened here.
  ~Asking() { comm_->asking.fetch_sub(1, std::memory_order_release); }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;

  // False: `comm` is no handle any more.
  bool live() const { return live_; }

 private:
  fcclComm_t comm_;
  bool live_;
};

Status anotherThreadInside();

}  // namespace fccl
