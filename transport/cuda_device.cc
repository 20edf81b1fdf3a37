#include "transport/cuda_device.h"

#include <cstring>

#include "transport/cuda_driver.h"

namespace fccl {
namespace {

// The first generation that the kernels are compiled for.
constexpr int kLeastGeneration = 80;

// Why there is no GPU to be seen: the end of a sentence.
Status nothingThere(cudaError_t code) {
  (void)cudaGetLastError();
  int driver = 0;
  int runtime = 0;
  switch (code) {
    case cudaErrorNoDevice:
      return failure(fcclUnhandledCudaError, "this process sees no NVIDIA GPU (is CUDA_VISIBLE_DEVICES empty?).");
    case cudaErrorInsufficientDriver:
      if (cudaDriverGetVersion(&driver) == cudaSuccess && driver != 0 &&
          cudaRuntimeGetVersion(&runtime) == cudaSuccess) {
        return failure(fcclUnhandledCudaError,
                       "the NVIDIA driver here is for CUDA {}.{} and this library needs CUDA {}.{}: update the driver.",
                       driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
      }
      return failure(fcclUnhandledCudaError, "there is no NVIDIA driver here (libcuda.so.1).");
    case cudaErrorInitializationError:
      return failure(fcclUnhandledCudaError,
                     "CUDA cannot be started in this process; where a parent that had used CUDA has forked it, start "
                     "it by exec.");
    default:
      return failure(fcclUnhandledCudaError, "CUDA cannot be used here: {} ({}).", cudaGetErrorString(code),
                     cudaGetErrorName(code));
  }
}

}  // namespace

Result<int> cudaDeviceCount() {
  int count = 0;
  if (const cudaError_t code = cudaGetDeviceCount(&count); code != cudaSuccess) return nothingThere(code);
  if (count == 0) return nothingThere(cudaErrorNoDevice);
  return count;
}

Result<int> usableCudaDevice(int device) {
  FCCL_TRY_ASSIGN(const int count, cudaDeviceCount());
  if (device < 0) FCCL_CUDA(cudaGetDevice(&device));
  if (device >= count) {
    return failure(fcclInvalidArgument, "cudaDevice is {}, and this process sees {} GPU{}, counted from 0.", device,
                   count, count == 1 ? "" : "s");
  }
  FCCL_TRY_ASSIGN(const int generation, cudaGeneration(device));
  if (generation < kLeastGeneration) {
    return failure(fcclInvalidUsage, "GPU {} has compute capability {}.{}, and FCCL needs {}.{} or more.", device,
                   generation / 10, generation % 10, kLeastGeneration / 10, kLeastGeneration % 10);
  }
  return device;
}

Result<int> cudaGeneration(int device) {
  int major = 0;
  int minor = 0;
  FCCL_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  FCCL_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return major * 10 + minor;
}

Result<CudaUuid> cudaUuid(int device) {
  FCCL_TRY_ASSIGN(const CudaDriver* driver, CudaDriver::get());
  CUuuid uuid{};
  FCCL_CUDA(driver->deviceGetUuid(&uuid, device));
  CudaUuid bytes;
  static_assert(sizeof(uuid.bytes) == sizeof(bytes));
  std::memcpy(bytes.data(), uuid.bytes, sizeof(bytes));
  return bytes;
}

}  // namespace fccl
