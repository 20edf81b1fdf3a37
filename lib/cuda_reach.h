// FCCL_CHECK on CUDA: whether a GPU reaches the buffers that a call was given.
#pragma once

#include "base/status.h"
#include "lib/validate.h"

namespace fccl {

// fcclInvalidArgument names a buffer that `device` cannot reach, and where it is. Asks the driver about each; may be
// called while a stream is captured.
Status checkReach(const CheckedCall& call, int device);

}  // namespace fccl
