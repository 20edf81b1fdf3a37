#include "lib/handle.h"

#include <deque>
#include <mutex>
#include <thread>

#include "lib/testing.h"

namespace fccl {
namespace {

// Ended handles, a cache that says so: the structs of the last kRemembered communicators that this process has
// destroyed.
class EndedHandles {
 public:
  void add(std::unique_ptr<fcclComm> handle) {
    std::lock_guard lock(mutex_);
    handles_.push_back(std::move(handle));
    if (handles_.size() > kRemembered) handles_.pop_front();
  }

 private:
  static constexpr size_t kRemembered = 256;
  std::mutex mutex_;
  std::deque<std::unique_ptr<fcclComm>> handles_;
};

EndedHandles& endedHandles() {
  // Never destroyed: handles may still be used while the process ends.
  static auto* handles = new EndedHandles;
  return *handles;
}

}  // namespace

fcclComm_t makeHandle(std::unique_ptr<Communicator> communicator) {
  auto handle = std::make_unique<fcclComm>();
  handle->communicator = std::move(communicator);
  return handle.release();
}

Status checkHandle(fcclComm_t comm) {
  if (comm == nullptr) return failure(fcclInvalidArgument, "comm is NULL.");
  // Relaxed: the caller got the handle from the thread that made it, in whatever way orders them.
  if (comm->magic.load(std::memory_order_relaxed) == fcclComm::kLive) return {};
  return failure(fcclInvalidArgument,
                 "comm is {}, which is no communicator (any more): never made, destroyed or aborted.",
                 static_cast<const void*>(comm));
}

bool endHandle(fcclComm_t comm) {
  uint64_t live = fcclComm::kLive;
  // Sequentially consistent: see Asking. Between this and a thread inside, `inside` settles it.
  return comm->magic.compare_exchange_strong(live, 0, std::memory_order_seq_cst);
}

void freeHandle(fcclComm_t comm) {
  std::unique_ptr<fcclComm> handle(comm);
  // Sequentially consistent: see Asking; it is an acquire too, for what those threads have done.
  while (handle->asking.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
  handle->communicator.reset();
  endedHandles().add(std::move(handle));
}

Status anotherThreadInside() {
  return failure(fcclInvalidUsage,
                 "Another thread is inside a call on this communicator; one thread at a time drives a rank.");
}

Communicator& testing::communicatorOf(fcclComm_t comm) { return *comm->communicator; }

}  // namespace fccl
