// Ranks of a CUDA communicator as tests drive them: each has a stream and a piece of GPU memory that lives as long as
// the group, since giving memory back waits for the whole GPU, where another rank's kernel may wait for this one.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/fused_case.h"
#include "tests/support/thread_ranks.h"

namespace fccl::test {

// How many GPUs there are; 0 also where there is no driver.
int gpuCount();

// The end of a test case without a GPU, or with too few.
#define FCCL_NEED_GPUS(count)                                                             \
  do {                                                                                    \
    if (::fccl::test::gpuCount() < (count)) FCCL_SKIP("no CUDA device here, or too few"); \
  } while (0)

// testConfig() for CUDA, ranks allowed to share a GPU.
fcclConfig_t cudaConfig();

// Throws where a CUDA call has failed; for threads, on which Catch's assertions may not be used.
void cudaOk(cudaError_t code, const char* what);

// GPU memory and a stream for one rank, on the current GPU.
class RankDevice {
 public:
  explicit RankDevice(size_t bytes = size_t{96} << 20);
  ~RankDevice();
  RankDevice(const RankDevice&) = delete;
  RankDevice& operator=(const RankDevice&) = delete;

  cudaStream_t stream() const { return stream_; }

  // Everything handed out before is free again.
  void reset() { used_ = 0; }
  // Aligned to 256 bytes, a canary behind it.
  void* take(size_t bytes);
  // Empty where all canaries are whole.
  std::string intact() const;

  // In the order of the stream; `to` is there on return.
  void upload(void* to, const void* from, size_t bytes) const;
  void download(void* to, const void* from, size_t bytes) const;
  void synchronize() const { cudaOk(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  struct Piece {
    size_t at;
    size_t bytes;
  };
  const size_t bytes_;
  char* memory_ = nullptr;
  cudaStream_t stream_ = nullptr;
  size_t used_ = 0;
  std::vector<Piece> pieces_;
};

// The buffers of one rank's fused call on its GPU, filled from `own`, with the same aliases.
class DeviceArgs {
 public:
  DeviceArgs(RankDevice& device, const FusedCase& asked, FusedBuffers& own);
  const fcclFusedArgs_t& args() const { return args_; }
  // Everything back to where it came from; what the GPU has around the buffers must be whole.
  void fetch();

 private:
  struct Copy {
    void* host;
    void* device;
    size_t bytes;
  };
  template <class T>
  void mirror(T** pointer, size_t bytes);

  RankDevice& device_;
  fcclFusedArgs_t args_;
  std::vector<Copy> copies_;
};

// A CUDA communicator whose ranks are threads that share the current GPU, unless `config` says otherwise.
class CudaRanks {
 public:
  explicit CudaRanks(int ranks, const fcclConfig_t& config = cudaConfig(), size_t bytesPerRank = size_t{96} << 20);

  RankGroup& group() { return group_; }
  RankDevice& device(int rank) { return *devices_[static_cast<size_t>(rank)]; }
  // runFused() with buffers on the GPU.
  FusedOutputs run(const FusedCase& asked);
  FusedOutputs run(FusedProblem& problem);

 private:
  std::vector<std::unique_ptr<RankDevice>> devices_;
  RankGroup group_;
};

// A window of `bytes` bytes for every rank of the group. Rank r's begins `skew` * r bytes into its block.
class CudaWindows {
 public:
  CudaWindows(CudaRanks& cuda, size_t bytes, size_t skew = 0);
  ~CudaWindows();
  CudaWindows(const CudaWindows&) = delete;
  CudaWindows& operator=(const CudaWindows&) = delete;

  char* at(int rank) const { return at_[static_cast<size_t>(rank)]; }
  // Its ranks are in error; the peers do not answer any more.
  void forget() { handles_.clear(); }

 private:
  CudaRanks& cuda_;
  std::vector<void*> blocks_;
  std::vector<char*> at_;
  std::vector<fcclWindow_t> handles_;
};

// fcclAllReduce of `count` elements on the rank's GPU, compared with the reference. Empty: right.
std::string allReduceOnDevice(RankDevice& device, fcclComm_t comm, int rank, int ranks, fcclDataType_t dtype,
                              size_t count, uint64_t seed);

}  // namespace fccl::test
