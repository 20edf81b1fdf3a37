// GPUs in a build without the CUDA toolkit: there are none.
#include "transport/cuda_device.h"
#include "transport/symmetric_memory.h"

namespace fccl {
namespace {

Status absent() {
  return failure(fcclInvalidUsage,
                 "this build of FCCL has no CUDA half, since it was built without the CUDA toolkit (nvcc).");
}

}  // namespace

Result<int> usableCudaDevice(int) { return absent(); }
Result<int> cudaDeviceCount() { return absent(); }
Result<CudaUuid> cudaUuid(int) { return absent(); }
Result<int> cudaGeneration(int) { return absent(); }

Result<void*> allocateCudaWindowMemory(size_t) { return absent(); }
bool freeCudaWindowMemory(void*) { return false; }

}  // namespace fccl
