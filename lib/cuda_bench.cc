// Bursts are graphs on a stream of their own, as an engine replays its calls: the host's time for launches is no part
// of them.
#include "lib/cuda_bench.h"

#include <cuda_runtime.h>

#include <vector>

#include "base/check.h"
#include "transport/cuda_driver.h"
#include "transport/symmetric_memory.h"

namespace fccl {
namespace {

class CudaBench final : public Bench {
 public:
  explicit CudaBench(int device) : device_(device) {}
  ~CudaBench() override {
    const OutsideCapture outside;
    const CurrentDevice current(device_);
    // After an error a call may still be on its way to its end.
    if (stream_.get() != nullptr) (void)cudaStreamSynchronize(stream_.get());
    clear();
    if (memory_ != nullptr) freeCudaWindowMemory(memory_);
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (end_ != nullptr) cudaEventDestroy(end_);
  }

  Status open() {
    const OutsideCapture outside;
    const CurrentDevice current(device_);
    const cudaError_t rested = cudaDeviceSynchronize();
    if (rested == cudaErrorStreamCaptureUnsupported) {
      (void)cudaGetLastError();
      return failure(fcclInvalidUsage,
                     "A stream of GPU {} is being captured; tune before the capture begins, or after it has ended.",
                     device_);
    }
    FCCL_CUDA(rested);
    FCCL_TRY_ASSIGN(stream_, PrivateStream::make());
    FCCL_CUDA(cudaEventCreate(&begin_));
    FCCL_CUDA(cudaEventCreate(&end_));
    FCCL_CUDA(cudaDeviceGetAttribute(&cacheBytes_, cudaDevAttrL2CacheSize, device_));
    return {};
  }

  size_t cacheBytes() const override { return static_cast<size_t>(cacheBytes_); }

  Result<char*> allocate(size_t bytes) override {
    const OutsideCapture outside;
    const CurrentDevice current(device_);
    FCCL_TRY_ASSIGN(memory_, allocateCudaWindowMemory(bytes));
    FCCL_CUDA(cudaMemsetAsync(memory_, kSmallNumber, bytes, stream_.get()));
    FCCL_CUDA(cudaStreamSynchronize(stream_.get()));
    return static_cast<char*>(memory_);
  }

  Result<int> add(const Call& call, int calls, int sets) override {
    const OutsideCapture outside;
    const CurrentDevice current(device_);
    FCCL_TRY_ASSIGN(cudaGraphExec_t graph, capture(call, calls, sets));
    bursts_.push_back({call, graph, calls});
    FCCL_CUDA(cudaGraphUpload(graph, stream_.get()));
    FCCL_CUDA(cudaStreamSynchronize(stream_.get()));
    return static_cast<int>(bursts_.size()) - 1;
  }

  Result<double> run(int number) override {
    const OutsideCapture outside;
    const CurrentDevice current(device_);
    const Burst& burst = bursts_[static_cast<size_t>(number)];
    FCCL_TRY(burst.call(stream_.get(), 0));
    FCCL_CUDA(cudaEventRecord(begin_, stream_.get()));
    FCCL_CUDA(cudaGraphLaunch(burst.graph, stream_.get()));
    FCCL_CUDA(cudaEventRecord(end_, stream_.get()));
    FCCL_CUDA(cudaStreamSynchronize(stream_.get()));
    float milliseconds = 0;
    FCCL_CUDA(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return static_cast<double>(milliseconds) * 1000 / burst.calls;
  }

  void clear() override {
    for (const Burst& burst : bursts_) cudaGraphExecDestroy(burst.graph);
    bursts_.clear();
  }

 private:
  static constexpr int kSmallNumber = 0x3c;  // of every byte: 0.01 in bf16 and fp32, 1.06 in fp16

  struct Burst {
    Call call;
    cudaGraphExec_t graph;
    int calls;
  };

  Result<cudaGraphExec_t> capture(const Call& call, int calls, int sets) {
    cudaGraph_t graph = nullptr;
    FCCL_CUDA(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeRelaxed));
    Status called;
    for (int i = 0; i < calls && called.ok(); i++) called = call(stream_.get(), i % sets);
    const cudaError_t ended = cudaStreamEndCapture(stream_.get(), &graph);
    cudaGraphExec_t executable = nullptr;
    cudaError_t made = ended;
    if (ended == cudaSuccess && called.ok()) made = cudaGraphInstantiate(&executable, graph, 0);
    if (graph != nullptr) cudaGraphDestroy(graph);
    FCCL_TRY(called);
    FCCL_CUDA(made);
    return executable;
  }

  const int device_;
  int cacheBytes_ = 0;
  PrivateStream stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  void* memory_ = nullptr;
  std::vector<Burst> bursts_;
};

}  // namespace

Result<std::unique_ptr<Bench>> makeCudaBench(int device) {
  auto bench = std::make_unique<CudaBench>(device);
  FCCL_TRY(bench->open());
  return std::unique_ptr<Bench>(std::move(bench));
}

}  // namespace fccl
