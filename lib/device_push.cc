// The host's part of fccl_device.h.
#include "base/check.h"
#include "fccl_device.h"
#include "lib/c_boundary.h"
#include "lib/struct_header.h"
#include "lib/validate.h"

using namespace fccl;

namespace {

Status initPush(Communicator& communicator, int64_t tokens, int64_t hidden, fcclDataType_t dtype,
                fcclDevicePush_t* push) {
  if (push == nullptr) return failure(fcclInvalidArgument, "push is NULL.");
  static constexpr StructVersion kVersions[] = {{FCCL_DEVICE_PUSH_VERSION, sizeof(fcclDevicePush_t)}};
  FCCL_TRY(checkHeader(*push, "fcclDevicePush_t", "FCCL_DEVICE_PUSH_INITIALIZER", FCCL_DEVICE_PUSH_MAGIC, kVersions));
  FCCL_TRY(checkShape(tokens, hidden, dtype));
  FCCL_TRY(checkPushedRow(hidden, dtype));
  return communicator.preparePush(tokens, hidden, dtype, push);
}

}  // namespace

fcclResult_t fcclDevicePushInit(fcclComm_t comm, int64_t tokens, int64_t hidden, fcclDataType_t dtype,
                                fcclDevicePush_t* push) {
  return withCommunicator("fcclDevicePushInit", comm, [&](Communicator& communicator) {
    return initPush(communicator, tokens, hidden, dtype, push);
  });
}
