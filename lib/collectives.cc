// The C entry points that move data.
#include "base/check.h"
#include "lib/c_boundary.h"
#include "lib/validate.h"

using namespace fccl;

fcclResult_t fcclAllReduce(const void* sendbuff, void* recvbuff, size_t count, fcclDataType_t datatype, fcclRedOp_t op,
                           fcclComm_t comm, fcclStream_t stream) {
  return insideCommunicator("fcclAllReduce", comm, [&](Communicator& communicator) -> Status {
    CheckedCall call;
    FCCL_TRY(checkAllReduce(sendbuff, recvbuff, count, datatype, op, stream, communicator.deviceType(), &call));
    return communicator.run(call);
  });
}

fcclResult_t fcclAllReduceFused(const fcclFusedArgs_t* args, fcclComm_t comm, fcclStream_t stream) {
  return insideCommunicator("fcclAllReduceFused", comm, [&](Communicator& communicator) -> Status {
    CheckedCall call;
    FCCL_TRY(checkAllReduceFused(args, stream, communicator.deviceType(), &call));
    return communicator.run(call);
  });
}

fcclResult_t fcclQuantScaleBytes(int64_t tokens, int64_t hidden, fcclFusionPattern_t pattern, fcclScaleLayout_t layout,
                                 size_t* bytes) {
  return boundary("fcclQuantScaleBytes", nullptr,
                  [&] { return quantScaleBytes(tokens, hidden, pattern, layout, bytes); });
}
