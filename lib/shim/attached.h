// The FCCL communicators behind NCCL's, by NCCL's handle.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "fccl.h"
#include "lib/shim/policy.h"
#include "lib/shim/stream_order.h"

namespace fccl::shim {

struct Attached {
  // NULL: FCCL has none here (any more), and everything goes to NCCL. Used under the mutex, so that it does not end
  // under a thread that asks it for errors.
  std::atomic<fcclComm_t> comm{nullptr};
  int rank = 0;
  int ranks = 0;
  uint64_t number = 0;  // in the order in which they were made, so that ranks agree on who is first
  Policy policy;
  std::mutex mutex;  // of what follows
  StreamOrder order;
  std::atomic<uint64_t> byFccl{0};
  std::atomic<uint64_t> byNccl{0};
};

// Collective over the ranks of ncclComm, which is ready: FCCL's communicator over it. Without one (several nodes, ranks
// that share a GPU, FCCL_NCCL_SHIM=0, ...) it is remembered all the same, and INFO says why.
void attach(void* ncclComm);
// FCCL's is given back, or with `abort` its waits end first; INFO says who has served how many calls.
void detach(void* ncclComm, bool abort);
// NULL where it is not known.
std::shared_ptr<Attached> find(void* ncclComm);

// Before something of ncclComm's goes to NCCL: it has its place among FCCL's calls.
void enqueueOn(void* ncclComm, void* stream);

}  // namespace fccl::shim
