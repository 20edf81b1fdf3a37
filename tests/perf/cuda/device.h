// GPU memory, streams and errors as fccl-perf needs them.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "fccl.h"
#include "tests/perf/ranks.h"

namespace fccl::perf {

inline void cudaOk(cudaError_t code, const char* call) {
  if (code != cudaSuccess) throw std::runtime_error(fmt::format("{}: {}", call, cudaGetErrorString(code)));
}

// GPU memory of fcclMemAllocOn that is a window; collective.
class DeviceWindow {
 public:
  DeviceWindow(fcclComm_t comm, size_t bytes) : comm_(comm) {
    require(fcclMemAllocOn(&data_, bytes, fcclDeviceCuda), "fcclMemAllocOn", nullptr);
    require(fcclCommWindowRegister(comm, data_, bytes, &window_, 0), "fcclCommWindowRegister", comm);
  }
  DeviceWindow(DeviceWindow&&) = delete;
  // A failure here cannot be acted on any more: the communicator is in error already, and that was reported.
  ~DeviceWindow() {
    if (window_ != nullptr) fcclCommWindowDeregister(comm_, window_);
    fcclMemFree(data_);
  }
  char* get() const { return static_cast<char*>(data_); }

 private:
  fcclComm_t comm_;
  void* data_ = nullptr;
  fcclWindow_t window_ = nullptr;
};

// A copy of a host buffer on the GPU; nothing where the host has none.
class DeviceCopy {
 public:
  explicit DeviceCopy(size_t bytes) : bytes_(bytes) {
    if (bytes != 0) cudaOk(cudaMalloc(&data_, bytes), "cudaMalloc");
  }
  // In memory of somebody else's.
  DeviceCopy(void* data, size_t bytes) : data_(data), bytes_(bytes), owned_(false) {}
  DeviceCopy(DeviceCopy&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_), owned_(other.owned_) {}
  DeviceCopy& operator=(DeviceCopy&&) = delete;
  ~DeviceCopy() {
    if (owned_) cudaFree(data_);
  }

  void* get() const { return data_; }
  void upload(const void* from) const {
    if (data_ != nullptr) cudaOk(cudaMemcpy(data_, from, bytes_, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  void download(void* to) const {
    if (data_ != nullptr) cudaOk(cudaMemcpy(to, data_, bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy");
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  bool owned_ = true;
};

}  // namespace fccl::perf
