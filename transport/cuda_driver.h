// CUDA as this library reaches it: the runtime is linked in statically and loads libcuda.so.1 when it is first asked;
// of the driver, functions that the runtime has not are looked up through it. So libfccl.so loads on any machine.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "base/check.h"

namespace fccl {

// "cudaMalloc(&p, n) failed: out of memory (cudaErrorMemoryAllocation, cuda_memory.cc:99)".
Status cudaFailure(cudaError_t code, const char* expression, const char* file, int line);
Status cudaFailure(CUresult code, const char* expression, const char* file, int line);

// A call of the CUDA runtime or driver. `expr` is evaluated once. An error is also taken out of the runtime's memory,
// where the caller would find it as the last error of a call of his own.
#define FCCL_CUDA(expr)                                                  \
  do {                                                                   \
    if (const auto code_ = (expr); code_ != decltype(code_){}) {         \
      return ::fccl::cudaFailure(code_, #expr, __FILE_NAME__, __LINE__); \
    }                                                                    \
  } while (0)

struct CudaDriver {
  decltype(&cuMemGetAllocationGranularity) memGetAllocationGranularity;
  decltype(&cuMemCreate) memCreate;
  decltype(&cuMemRelease) memRelease;
  decltype(&cuMemAddressReserve) memAddressReserve;
  decltype(&cuMemAddressFree) memAddressFree;
  decltype(&cuMemMap) memMap;
  decltype(&cuMemUnmap) memUnmap;
  decltype(&cuMemSetAccess) memSetAccess;
  decltype(&cuMemExportToShareableHandle) memExportToShareableHandle;
  decltype(&cuMemImportFromShareableHandle) memImportFromShareableHandle;
  decltype(&cuDeviceGetAttribute) deviceGetAttribute;
  decltype(&cuDeviceGetUuid) deviceGetUuid;
  decltype(&cuGetErrorName) getErrorName;
  decltype(&cuGetErrorString) getErrorString;

  // Looked up once per process. The failure names the function that the driver lacks.
  static Result<const CudaDriver*> get();
};

// Makes a GPU the calling thread's current one for as long as the object lives; nothing where it already is.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    code_ = cudaGetDevice(&before_);
    if (code_ != cudaSuccess || before_ == device) return;
    code_ = cudaSetDevice(device);
    changed_ = code_ == cudaSuccess;
  }
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  cudaError_t code() const { return code_; }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t code_;
};

// Allows the calling thread what stream capture forbids, while another thread captures in global mode: nothing that
// this library allocates has to do with that capture.
class OutsideCapture {
 public:
  OutsideCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~OutsideCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  OutsideCapture(const OutsideCapture&) = delete;
  OutsideCapture& operator=(const OutsideCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// A stream of the current GPU that waits for no other.
class PrivateStream {
 public:
  PrivateStream() = default;
  static Result<PrivateStream> make() {
    PrivateStream made;
    FCCL_CUDA(cudaStreamCreateWithFlags(&made.stream_, cudaStreamNonBlocking));
    return made;
  }
  PrivateStream(PrivateStream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  PrivateStream& operator=(PrivateStream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~PrivateStream() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace fccl
