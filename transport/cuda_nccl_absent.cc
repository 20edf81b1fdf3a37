// In a build without the CUDA toolkit there is no GPU memory to gather through.
#include "transport/nccl_bootstrap.h"

namespace fccl {

Status gatherOverNccl(NcclCommunicator&, const void*, void*, size_t) {
  return failure(fcclInvalidUsage,
                 "this build of FCCL has no CUDA half, since it was built without the CUDA toolkit (nvcc).");
}

}  // namespace fccl
