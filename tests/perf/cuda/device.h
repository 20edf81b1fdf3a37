// GPU memory, streams and errors as fccl-perf needs them.
#pragma once

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <stdexcept>

namespace fccl::perf {

inline void cudaOk(cudaError_t code, const char* call) {
  if (code != cudaSuccess) throw std::runtime_error(fmt::format("{}: {}", call, cudaGetErrorString(code)));
}

// A copy of a host buffer on the GPU; nothing where the host has none.
class DeviceCopy {
 public:
  DeviceCopy() = default;
  explicit DeviceCopy(size_t bytes) : bytes_(bytes) {
    if (bytes != 0) cudaOk(cudaMalloc(&data_, bytes), "cudaMalloc");
  }
  DeviceCopy(DeviceCopy&& other) noexcept : data_(other.data_), bytes_(other.bytes_) { other.data_ = nullptr; }
  DeviceCopy& operator=(DeviceCopy&&) = delete;
  ~DeviceCopy() { cudaFree(data_); }

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
};

}  // namespace fccl::perf
