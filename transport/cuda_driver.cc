#include "transport/cuda_driver.h"

namespace fccl {
namespace {

template <class Function>
Status lookUp(const char* name, Function* target) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  // The forms of CUDA 12.0: of functions that have several, all used here have not changed since.
  constexpr unsigned kForms = 12000;
#if CUDART_VERSION >= 12050
  const cudaError_t code = cudaGetDriverEntryPointByVersion(name, &found, kForms, cudaEnableDefault, &result);
#else
  const cudaError_t code = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  FCCL_CUDA(code);
  if (result != cudaDriverEntryPointSuccess || found == nullptr) {
    return failure(fcclSystemError, "the NVIDIA driver has no {}; it is too old for this library (CUDA {}.{})", name,
                   kForms / 1000, kForms % 1000 / 10);
  }
  *target = reinterpret_cast<Function>(found);
  return {};
}

Result<CudaDriver> lookUpAll() {
  CudaDriver driver{};
  FCCL_TRY(lookUp("cuMemGetAllocationGranularity", &driver.memGetAllocationGranularity));
  FCCL_TRY(lookUp("cuMemCreate", &driver.memCreate));
  FCCL_TRY(lookUp("cuMemRelease", &driver.memRelease));
  FCCL_TRY(lookUp("cuMemAddressReserve", &driver.memAddressReserve));
  FCCL_TRY(lookUp("cuMemAddressFree", &driver.memAddressFree));
  FCCL_TRY(lookUp("cuMemMap", &driver.memMap));
  FCCL_TRY(lookUp("cuMemUnmap", &driver.memUnmap));
  FCCL_TRY(lookUp("cuMemSetAccess", &driver.memSetAccess));
  FCCL_TRY(lookUp("cuMemExportToShareableHandle", &driver.memExportToShareableHandle));
  FCCL_TRY(lookUp("cuMemImportFromShareableHandle", &driver.memImportFromShareableHandle));
  FCCL_TRY(lookUp("cuDeviceGetAttribute", &driver.deviceGetAttribute));
  FCCL_TRY(lookUp("cuDeviceGetUuid", &driver.deviceGetUuid));
  FCCL_TRY(lookUp("cuGetErrorName", &driver.getErrorName));
  FCCL_TRY(lookUp("cuGetErrorString", &driver.getErrorString));
  return driver;
}

}  // namespace

Result<const CudaDriver*> CudaDriver::get() {
  static const Result<CudaDriver> driver = lookUpAll();
  FCCL_TRY(driver.status());
  return &driver.value();
}

Status cudaFailure(cudaError_t code, const char* expression, const char* file, int line) {
  (void)cudaGetLastError();
  return failure(fcclUnhandledCudaError, "{} failed: {} ({}, {}:{})", expression, cudaGetErrorString(code),
                 cudaGetErrorName(code), file, line);
}

Status cudaFailure(CUresult code, const char* expression, const char* file, int line) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (const Result<const CudaDriver*> driver = CudaDriver::get(); driver.ok()) {
    driver.value()->getErrorName(code, &name);
    driver.value()->getErrorString(code, &text);
  }
  return failure(fcclUnhandledCudaError, "{} failed: {} ({}, {}:{})", expression,
                 text != nullptr ? text : "an unknown error", name != nullptr ? name : "?", file, line);
}

}  // namespace fccl
