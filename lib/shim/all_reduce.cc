#include "lib/shim/all_reduce.h"

#include "lib/shim/group.h"
#include "lib/shim/real.h"

namespace fccl::shim {
namespace {

// FCCL refuses whatever comes for a handle that has ended; only of a live one does that say something about the call.
bool isLive(fcclComm_t comm) {
  int rank = 0;
  return fcclCommUserRank(comm, &rank) == fcclSuccess;
}

Outcome aborted() { return {fcclInvalidUsage, "ncclAllReduce: the communicator was aborted."}; }

}  // namespace

std::optional<Outcome> byFccl(Attached& at, const Call& c) {
  const std::lock_guard lock(at.mutex);
  // Acquire: whether it was an abort that has taken it out.
  const fcclComm_t comm = at.comm.load(std::memory_order_acquire);
  if (comm == nullptr) {
    if (at.aborted.load(std::memory_order_relaxed)) return aborted();
    return std::nullopt;
  }
  at.order.before(c.stream);
  const fcclResult_t result = fcclAllReduce(c.in, c.out, c.count, static_cast<fcclDataType_t>(c.dtype),
                                            static_cast<fcclRedOp_t>(c.op), comm, static_cast<fcclStream_t>(c.stream));
  if (result == fcclInvalidArgument) {
    if (isLive(comm)) return std::nullopt;
    return aborted();
  }
  at.order.after(c.stream);
  if (result != fcclSuccess) return Outcome{result, fcclGetLastError(nullptr)};
  at.byFccl.fetch_add(1, std::memory_order_relaxed);  // for a text
  return Outcome{};
}

int byNccl(const std::shared_ptr<Attached>& at, const Call& c) {
  if (at != nullptr) at->byNccl.fetch_add(1, std::memory_order_relaxed);  // for a text
  return inOrder(at, c.stream,
                 [&] { return callReal("ncclAllReduce", c.in, c.out, c.count, c.dtype, c.op, c.ncclComm, c.stream); });
}

}  // namespace fccl::shim
