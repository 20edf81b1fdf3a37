// One block of a GPU's memory, made here or mapped from another process, in the two ways that CUDA has for sharing.
#pragma once

#include <memory>
#include <span>

#include "transport/cuda_driver.h"
#include "transport/socket.h"

namespace fccl {

// What another process needs to map a block, beside its file descriptor where it has one. Travels as bytes.
struct CudaTicket {
  cudaIpcMemHandle_t handle;  // of a block without descriptor
  uint64_t bytes;
  int32_t hasDescriptor;
  int32_t unused;
};

class CudaBlock {
 public:
  virtual ~CudaBlock() = default;
  CudaBlock(const CudaBlock&) = delete;
  CudaBlock& operator=(const CudaBlock&) = delete;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }  // at least what was asked for
  int device() const { return device_; }
  virtual bool hasDescriptor() const = 0;

  // Kernels of these GPUs of this process may use the block.
  virtual Status admit(std::span<const int> devices) = 0;
  // For other processes. `descriptor` stays invalid where the block has none.
  virtual Status publish(CudaTicket* ticket, Fd* descriptor) const = 0;

 protected:
  CudaBlock() = default;
  char* data_ = nullptr;
  size_t bytes_ = 0;
  int device_ = 0;
};

// Of `device`, usable there. By the driver's virtual memory management, shareable as a file descriptor: fcclSystemError
// where the GPU or the system has none of that.
Result<std::shared_ptr<CudaBlock>> makeVmmBlock(int device, size_t bytes);
// By cudaMalloc.
Result<std::shared_ptr<CudaBlock>> makePlainBlock(int device, size_t bytes);

// A block of another process, for kernels of `device`.
Result<std::shared_ptr<CudaBlock>> importBlock(const CudaTicket& ticket, int descriptor, int device);

}  // namespace fccl
