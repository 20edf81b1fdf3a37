// The C entry points that move data.
#include "base/check.h"
#include "lib/c_boundary.h"
#include "lib/group.h"
#include "lib/validate.h"

using namespace fccl;

namespace {

fcclResult_t allReduce(const void* sendbuff, void* recvbuff, size_t count, fcclDataType_t datatype, fcclRedOp_t op,
                       fcclComm_t comm, fcclStream_t stream) {
  return insideCommunicator("fcclAllReduce", comm, [&](Communicator& communicator) -> Status {
    CheckedCall call;
    FCCL_TRY(checkAllReduce(sendbuff, recvbuff, count, datatype, op, stream, communicator.deviceType(), &call));
    return communicator.run(call);
  });
}

fcclResult_t allReduceFused(const fcclFusedArgs_t* args, fcclComm_t comm, fcclStream_t stream) {
  return insideCommunicator("fcclAllReduceFused", comm, [&](Communicator& communicator) -> Status {
    CheckedCall call;
    FCCL_TRY(checkAllReduceFused(args, stream, communicator.caller(), &call));
    return communicator.run(call);
  });
}

// In a group: `check` now, `call` at its end. From inside, since whether the call waits depends on what has been
// planned.
template <class Check, class Call>
[[gnu::cold, gnu::noinline]] fcclResult_t deferCollective(const char* function, fcclComm_t comm, Check&& check,
                                                          Call&& call) {
  return group::spoil(insideCommunicator(function, comm, [&](Communicator& communicator) -> Status {
    FCCL_TRY(communicator.usable());
    CheckedCall checked;
    FCCL_TRY(check(communicator.caller(), &checked));
    group::defer(comm, communicator.waits(checked), std::forward<Call>(call));
    return {};
  }));
}

}  // namespace

fcclResult_t fcclAllReduce(const void* sendbuff, void* recvbuff, size_t count, fcclDataType_t datatype, fcclRedOp_t op,
                           fcclComm_t comm, fcclStream_t stream) {
  if (!group::open()) [[likely]]
    return allReduce(sendbuff, recvbuff, count, datatype, op, comm, stream);
  return deferCollective(
      "fcclAllReduce", comm,
      [&](const Caller& caller, CheckedCall* call) {
        return checkAllReduce(sendbuff, recvbuff, count, datatype, op, stream, caller.device, call);
      },
      [=] { return allReduce(sendbuff, recvbuff, count, datatype, op, comm, stream); });
}

fcclResult_t fcclAllReduceFused(const fcclFusedArgs_t* args, fcclComm_t comm, fcclStream_t stream) {
  if (!group::open()) [[likely]]
    return allReduceFused(args, comm, stream);
  const fcclFusedArgs_t copy = copyFusedArgs(args);
  return deferCollective(
      "fcclAllReduceFused", comm,
      [&](const Caller& caller, CheckedCall* call) { return checkAllReduceFused(args, stream, caller, call); },
      [=] { return allReduceFused(&copy, comm, stream); });
}

fcclResult_t fcclQuantScaleBytes(int64_t tokens, int64_t hidden, fcclFusionPattern_t pattern, fcclScaleLayout_t layout,
                                 size_t* bytes) {
  return boundary("fcclQuantScaleBytes", nullptr,
                  [&] { return quantScaleBytes(tokens, hidden, pattern, layout, bytes); });
}

fcclResult_t fcclResidualShard(int64_t tokens, int nranks, int rank, int64_t* first, int64_t* count) {
  return boundary("fcclResidualShard", nullptr, [&] { return residualShard(tokens, nranks, rank, first, count); });
}
