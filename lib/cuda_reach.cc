#include "lib/cuda_reach.h"

#include <utility>

#include "base/check.h"
#include "transport/cuda_driver.h"

namespace fccl {

Status checkReach(const CheckedCall& call, int device) {
  if (call.empty()) return {};
  const CurrentDevice current(device);
  const RowArgs& rows = call.call.rows;
  const std::pair<const char*, const void*> buffers[] = {
      {"input", rows.input},           {"residual", rows.residual},       {"weight", rows.weight},
      {"reducedOut", rows.reducedOut}, {"residualOut", rows.residualOut}, {"normOut", rows.normOut},
      {"quantOut", rows.quantOut},     {"scaleOut", rows.scaleOut},       {"scale", rows.quantScale}};
  int pageable = 0;
  FCCL_CUDA(cudaDeviceGetAttribute(&pageable, cudaDevAttrPageableMemoryAccess, device));
  for (const auto& [name, pointer] : buffers) {
    if (pointer == nullptr) continue;
    cudaPointerAttributes attributes{};
    FCCL_CUDA(cudaPointerGetAttributes(&attributes, pointer));
    if (attributes.type == cudaMemoryTypeDevice && attributes.device != device) {
      int reaches = 0;
      FCCL_CUDA(cudaDeviceCanAccessPeer(&reaches, device, attributes.device));
      if (reaches != 0) continue;
      return failure(fcclInvalidArgument,
                     "{} is {}, memory of GPU {}, which GPU {} of this rank cannot reach; pass memory of GPU {}.", name,
                     pointer, attributes.device, device, device);
    }
    if (attributes.type != cudaMemoryTypeUnregistered || pageable != 0) continue;
    return failure(fcclInvalidArgument,
                   "{} is {}, host memory that GPU {} cannot reach; a CUDA communicator takes memory of cudaMalloc, "
                   "fcclMemAlloc and the like.",
                   name, pointer, device);
  }
  return {};
}

}  // namespace fccl
