// libfccl-nccl.so: NCCL's functions, of which FCCL serves some of the calls of ncclAllReduce; everything else goes to
// the NCCL behind as it came. LD_PRELOAD puts it before NCCL.
//
// call                              what happens
// a communicator is made            NCCL makes it, then FCCL's over it, unless in a group or not ready on return
//                                   (non-blocking): then everything of it goes to NCCL
// ncclAllReduce                     FCCL's where the policy says so and FCCL takes the arguments, else NCCL's
// the same in a group               waits for the group's end, where FCCL's come first, in the same order on all ranks
// finalize, destroy                 FCCL's communicator goes first, when no call of it is under way
// abort, revoke                     FCCL's goes first, at once: a call that waits in it fails
// ncclCommGetAsyncError             NCCL's error, else FCCL's
#include <algorithm>
#include <optional>
#include <vector>

#include "base/log.h"
#include "lib/shim/attached.h"
#include "lib/shim/real.h"
#include "transport/nccl_library.h"

using namespace fccl;
using namespace fccl::shim;
using fccl::nccl::UniqueId;

#define SHIM_API extern "C" __attribute__((visibility("default")))

namespace {

struct Call {
  const void* in;
  void* out;
  size_t count;
  int dtype;
  int op;
  void* ncclComm;
  void* stream;
};

struct Waiting {
  Call call;
  std::shared_ptr<Attached> at;
};

thread_local int depth = 0;
thread_local std::vector<Waiting> waiting;

int byNccl(const Call& c) {
  return callReal("ncclAllReduce", c.in, c.out, c.count, c.dtype, c.op, c.ncclComm, c.stream);
}

// FCCL refuses whatever comes for a handle that has ended; only of a live one does that say something about the call.
bool isLive(fcclComm_t comm) {
  int rank = 0;
  return fcclCommUserRank(comm, &rank) == fcclSuccess;
}

// Nothing: FCCL does not take these arguments, and has enqueued nothing; NCCL may. Not what meets an abort: NCCL's
// communicator goes as well.
std::optional<int> byFccl(Attached& at, const Call& c) {
  const std::lock_guard lock(at.mutex);
  // Acquire: whether it was an abort that has taken it out.
  const fcclComm_t comm = at.comm.load(std::memory_order_acquire);
  if (comm == nullptr) {
    if (at.aborted.load(std::memory_order_relaxed)) return fcclInvalidUsage;
    return std::nullopt;
  }
  at.order.follow(c.stream);
  const fcclResult_t result = fcclAllReduce(c.in, c.out, c.count, static_cast<fcclDataType_t>(c.dtype),
                                            static_cast<fcclRedOp_t>(c.op), comm, static_cast<fcclStream_t>(c.stream));
  if (result == fcclInvalidArgument) return isLive(comm) ? std::nullopt : std::optional<int>(fcclInvalidUsage);
  if (result == fcclSuccess) at.byFccl.fetch_add(1, std::memory_order_relaxed);  // for a text
  return result;
}

int carryOut(Attached& at, const Call& c) {
  if (const std::optional<int> done = byFccl(at, c)) return *done;
  at.byNccl.fetch_add(1, std::memory_order_relaxed);  // for a text
  return byNccl(c);
}

// What waited in a group. Communicators in the order in which they were made, whatever order this rank has called them
// in: inside of a group NCCL's callers need not agree on one.
int endWaiting() {
  std::vector<Waiting> calls;
  calls.swap(waiting);
  std::stable_sort(calls.begin(), calls.end(),
                   [](const Waiting& a, const Waiting& b) { return a.at->number < b.at->number; });
  int worst = fcclSuccess;
  for (const Waiting& each : calls) {
    if (const int code = carryOut(*each.at, each.call); worst == fcclSuccess) worst = code;
  }
  return worst;
}

// A communicator that NCCL has made, if it is ready. In a group it is made at its end.
int made(int code, void** comm) {
  if (code == fcclSuccess && depth == 0 && comm != nullptr && *comm != nullptr) attach(*comm);
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
  if (ours != nullptr && fcclCommGetAsyncError(ours, &failed) == fcclSuccess) *error = failed;
  return code;
}

SHIM_API int ncclAllReduce(const void* in, void* out, size_t count, int dtype, int op, void* comm, void* stream) {
  const Call call{in, out, count, dtype, op, comm, stream};
  const std::shared_ptr<Attached> at = find(comm);
  if (at == nullptr) return byNccl(call);
  if (at->serves() && at->policy.serves(at->ranks, count, dtype, op)) {
    if (depth == 0) return carryOut(*at, call);
    waiting.push_back({call, at});
    return fcclSuccess;
  }
  enqueueOn(comm, stream);
  at->byNccl.fetch_add(1, std::memory_order_relaxed);  // for a text
  return byNccl(call);
}

SHIM_API int ncclGroupStart() {
  const int code = callReal("ncclGroupStart");
  if (code == fcclSuccess) depth++;
  return code;
}
SHIM_API int ncclGroupEnd() {
  int ours = fcclSuccess;
  if (depth > 0 && --depth == 0) ours = endWaiting();
  const int code = callReal("ncclGroupEnd");
  return ours != fcclSuccess ? ours : code;
}
// Nothing is carried out: what waited for it neither.
SHIM_API int ncclGroupSimulateEnd(void* info) {
  if (depth > 0 && --depth == 0) waiting.clear();
  return callReal("ncclGroupSimulateEnd", info);
}
