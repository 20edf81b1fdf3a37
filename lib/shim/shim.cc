// libfccl-nccl.so: NCCL's functions, of which FCCL serves some of the calls of ncclAllReduce; everything else goes to
// the NCCL behind as it came. LD_PRELOAD puts it before NCCL.
//
// call                              what happens
// a communicator is made            NCCL makes it, then FCCL's over it, unless in a group or not ready on return
//                                   (non-blocking): then everything of it goes to NCCL
// ncclAllReduce                     FCCL's where the policy allows it, FCCL's selection says that it is faster and FCCL
//                                   takes the arguments; else NCCL's
// the same in a group               waits for the group's end, where FCCL's come first, in the same order on all ranks
// finalize, destroy                 FCCL's communicator goes first, when no call of it is under way
// abort, revoke                     FCCL's goes first, at once: a call that waits in it fails
// ncclCommGetAsyncError             NCCL's error, else FCCL's
// ncclGetLastError                  of whichever has failed last
#include <utility>

#include "lib/shim/all_reduce.h"
#include "lib/shim/attached.h"
#include "lib/shim/group.h"
#include "lib/shim/real.h"
#include "transport/nccl_library.h"

using namespace fccl;
using namespace fccl::shim;
using fccl::nccl::UniqueId;

#define SHIM_API extern "C" __attribute__((visibility("default")))

namespace {

// A communicator that NCCL has made, if it is ready. In a group it is made at its end.
int made(int code, void** comm) {
  if (code == fcclSuccess && !inGroup() && comm != nullptr && *comm != nullptr) attach(*comm);
  return code;
}

}  // namespace

// By which libfccl.so knows that the process's ncclAllReduce is this one.
SHIM_API int fcclNcclShim() { return FCCL_VERSION_CODE; }

SHIM_API int ncclCommInitRank(void** comm, int ranks, UniqueId id, int rank) {
  return made(callReal("ncclCommInitRank", comm, ranks, id, rank), comm);
}
SHIM_API int ncclCommInitRankConfig(void** comm, int ranks, UniqueId id, int rank, void* config) {
  return made(callReal("ncclCommInitRankConfig", comm, ranks, id, rank, config), comm);
}
SHIM_API int ncclCommInitRankScalable(void** comm, int ranks, int rank, int ids, UniqueId* all, void* config) {
  return made(callReal("ncclCommInitRankScalable", comm, ranks, rank, ids, all, config), comm);
}
SHIM_API int ncclCommSplit(void* parent, int color, int key, void** comm, void* config) {
  return made(callReal("ncclCommSplit", parent, color, key, comm, config), comm);
}
SHIM_API int ncclCommShrink(void* parent, int* excluded, int count, void** comm, void* config, int flags) {
  return made(callReal("ncclCommShrink", parent, excluded, count, comm, config, flags), comm);
}
SHIM_API int ncclCommFinalize(void* comm) {
  detach(comm);
  return callReal("ncclCommFinalize", comm);
}
SHIM_API int ncclCommDestroy(void* comm) {
  detach(comm);
  return callReal("ncclCommDestroy", comm);
}
SHIM_API int ncclCommAbort(void* comm) {
  detachAtOnce(comm);
  return callReal("ncclCommAbort", comm);
}
SHIM_API int ncclCommRevoke(void* comm, int flags) {
  detachAtOnce(comm);
  return callReal("ncclCommRevoke", comm, flags);
}
SHIM_API int ncclCommGetAsyncError(void* comm, int* error) {
  const int code = callReal("ncclCommGetAsyncError", comm, error);
  const std::shared_ptr<Attached> at = find(comm);
  if (code != fcclSuccess || error == nullptr || *error != fcclSuccess || at == nullptr) return code;
  // No lock: a watchdog asks while a call is stuck. Acquire: what attach() has made.
  const fcclComm_t ours = at->comm.load(std::memory_order_acquire);
  fcclResult_t failed = fcclSuccess;
  if (ours == nullptr || fcclCommGetAsyncError(ours, &failed) != fcclSuccess || failed == fcclSuccess) return code;
  *error = tell({failed, fcclGetLastError(ours)});
  return code;
}

SHIM_API int ncclAllReduce(const void* in, void* out, size_t count, int dtype, int op, void* comm, void* stream) {
  const Call call{in, out, count, dtype, op, comm, stream};
  const std::shared_ptr<Attached> at = find(comm);
  if (at == nullptr || !at->serves() || !at->policy.mayServe(at->ranks, count, dtype, op)) return byNccl(at, call);
  if (!at->isFaster(count, dtype)) return byNccl(at, call);
  if (inGroup()) {
    defer(at, call);
    return fcclSuccess;
  }
  std::optional<Outcome> done = byFccl(*at, call);
  return done ? tell(std::move(*done)) : byNccl(at, call);
}

SHIM_API int ncclGroupStart() { return startGroup(); }
SHIM_API int ncclGroupEnd() { return endGroup(); }
SHIM_API int ncclGroupSimulateEnd(void* info) { return simulateGroupEnd(info); }
