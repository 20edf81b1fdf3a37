// The strategies NCCL and NCCL_SYMMETRIC of one rank: an NCCL communicator beside FCCL's own memory, a staging buffer,
// and the epilogue as a kernel of its own.
//
// pattern                          enqueued
// plain                            ncclAllReduce(input, reducedOut)
// norm, reducedOut or normOut      ncclAllReduce(input, that one), epilogue kernel
// norm, neither                    in parts that the staging buffer holds: ncclAllReduce(input, staging), epilogue
// NCCL_SYMMETRIC                   in such parts: copy(input, staging), ncclAllReduce in place there, epilogue, or
//                                  copy(staging, reducedOut). An input in a window of the communicator is not copied;
//                                  where reducedOut or normOut is in one too, as with NCCL
//
// HBM bytes beside NCCL's          epilogue: sums, residual and outputs once each; NCCL_SYMMETRIC: two more of the
//                                  payload for each copy
// synchronisation                  the order of the stream
#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/cuda_kernels.h"
#include "lib/validate.h"
#include "transport/nccl_communicator.h"
#include "tuner/registry.h"

namespace fccl {

class CudaNccl {
 public:
  // Collective; this rank's GPU is current. `stagingBytes` of its memory are taken, `words` are this rank's.
  static Result<std::unique_ptr<CudaNccl>> create(std::unique_ptr<NcclCommunicator> communicator, Bootstrap& bootstrap,
                                                  size_t stagingBytes, cuda::HostWords* words);
  ~CudaNccl();
  CudaNccl(const CudaNccl&) = delete;
  CudaNccl& operator=(const CudaNccl&) = delete;

  // As Facts::noNcclWindow.
  const std::string& windowReason() const { return staging_->windowReason(); }

  // Collective: makes a window of the communicator one of NCCL's too, where NCCL has such.
  void addWindow(Bootstrap& bootstrap, void* data, size_t bytes);
  void removeWindow(const void* data);

  // What Engine's functions of these names do.
  Status prepare(const cuda::DeviceFacts& facts, const CheckedCall& call, Plan* plan) const;
  // `begun`: something has been enqueued.
  Status run(const CheckedCall& call, const Plan& plan, bool* begun);
  Status enqueuedError() { return communicator_->asyncError(); }
  void stopWaits() { communicator_->abort(); }

  std::string describe() const;

 private:
  CudaNccl() = default;
  Status runPlain(const CheckedCall& call, const Plan& plan, bool* begun);
  Status runStaged(const CheckedCall& call, const Plan& plan, bool copies, bool* begun);
  bool inWindow(const void* data, size_t bytes) const;

  std::unique_ptr<NcclCommunicator> communicator_;
  std::unique_ptr<NcclBuffer> staging_;  // after the communicator, before which it must go
  std::vector<std::unique_ptr<NcclWindow>> windows_;
  cuda::DeviceState* state_ = nullptr;
  cuda::CudaWorld epilogue_{};
};

}  // namespace fccl
