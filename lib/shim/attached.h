// The FCCL communicators behind NCCL's, by NCCL's handle.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "fccl.h"
#include "lib/shim/answers.h"
#include "lib/shim/policy.h"
#include "lib/shim/stream_order.h"

namespace fccl::shim {

struct Attached {
  explicit Attached(int gpu) : device(gpu), order(gpu) {}

  // NULL: FCCL has none here (any more). Whoever takes it out gives it back. Others may be using the handle at that
  // moment: libfccl keeps a communicator while it is asked something, and an abort ends the call that is inside, so an
  // abort waits for no lock of the shim's. Not so fcclCommDestroy, which is called under the mutex.
  std::atomic<fcclComm_t> comm{nullptr};
  // Set before an abort takes comm out: then what was to be served here must not go to NCCL's either.
  std::atomic<bool> aborted{false};
  // Whether calls are FCCL's to carry out, or to refuse. Acquire: see `aborted`.
  bool serves() const {
    return comm.load(std::memory_order_acquire) != nullptr || aborted.load(std::memory_order_relaxed);
  }
  const int device;  // the GPU of this rank, as cudaSetDevice counts
  int rank = 0;
  int ranks = 0;
  uint64_t number = 0;  // in the order in which they were made, so that ranks agree on who is first
  Policy policy;
  std::mutex mutex;  // of what follows; held over a call of FCCL's, however long that waits
  StreamOrder order;
  Answers faster;
  // Where NCCL enqueues.
  void before(void* stream) {
    const std::lock_guard lock(mutex);
    order.before(stream);
  }
  void after(void* stream) {
    const std::lock_guard lock(mutex);
    order.after(stream);
  }
  // Whether FCCL does such a sum faster than NCCL, by its own selection.
  bool isFaster(size_t count, int dtype) {
    const std::lock_guard lock(mutex);
    return faster.of(comm.load(std::memory_order_acquire), count, dtype);
  }
  std::atomic<uint64_t> byFccl{0};
  std::atomic<uint64_t> byNccl{0};
};

// Collective over the ranks of ncclComm, which is ready: FCCL's communicator over it. Without one (several nodes, ranks
// that share a GPU, FCCL_NCCL_SHIM=0, ...) it is remembered all the same, and INFO says why.
void attach(void* ncclComm);
// FCCL's is given back, once no call is under way; INFO says who has served how many calls.
void detach(void* ncclComm);
// The same at once: what waits in FCCL ends with an error. From any thread.
void detachAtOnce(void* ncclComm);
// NULL where it is not known.
std::shared_ptr<Attached> find(void* ncclComm);

}  // namespace fccl::shim
