#include <cstring>
#include <memory>

#include "transport/cuda_driver.h"
#include "transport/nccl_bootstrap.h"

namespace fccl {
namespace {

struct DeviceFree {
  void operator()(void* data) const { cudaFree(data); }
};

}  // namespace

Status gatherOverNccl(NcclCommunicator& communicator, const void* mine, void* all, size_t bytes) {
  const OutsideCapture outside;
  const auto ranks = static_cast<size_t>(communicator.ranks());
  void* data = nullptr;
  FCCL_CUDA(cudaMalloc(&data, ranks * bytes));
  const std::unique_ptr<void, DeviceFree> owner(data);
  char* const own = static_cast<char*>(data) + static_cast<size_t>(communicator.rank()) * bytes;
  FCCL_TRY_ASSIGN(const PrivateStream stream, PrivateStream::make());
  FCCL_CUDA(cudaMemcpyAsync(own, mine, bytes, cudaMemcpyHostToDevice, stream.get()));
  FCCL_TRY(communicator.allGather(own, data, bytes, stream.get()));
  FCCL_CUDA(cudaMemcpyAsync(all, data, ranks * bytes, cudaMemcpyDeviceToHost, stream.get()));
  FCCL_CUDA(cudaStreamSynchronize(stream.get()));
  return communicator.asyncError();
}

}  // namespace fccl
