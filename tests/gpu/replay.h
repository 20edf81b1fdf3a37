// Calls that a test captures, to replay them.
#pragma once

#include "tests/gpu/device_ranks.h"

namespace fccl::test {

// What one rank has put into its stream, as a graph that is on the GPU. Given back when it ends: no launch of it may be
// under way then.
class Replay {
 public:
  // enqueue() makes the calls. The end of it may wait for the whole GPU, so no kernel of a peer may wait for this rank.
  template <class Enqueue>
  Replay(cudaStream_t stream, Enqueue&& enqueue, cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal)
      : Replay(stream) {
    cudaGraph_t graph = nullptr;
    cudaOk(cudaStreamBeginCapture(stream, mode), "begin of the capture");
    enqueue();
    cudaOk(cudaStreamEndCapture(stream, &graph), "end of the capture");
    cudaOk(cudaGraphGetNodes(graph, nullptr, &nodes_), "cudaGraphGetNodes");
    cudaOk(cudaGraphInstantiate(&graph_, graph, 0), "cudaGraphInstantiate");
    cudaOk(cudaGraphDestroy(graph), "cudaGraphDestroy");
    cudaOk(cudaGraphUpload(graph_, stream), "cudaGraphUpload");
    cudaOk(cudaStreamSynchronize(stream), "end of the upload");
  }
  ~Replay() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  void launch() const { cudaOk(cudaGraphLaunch(graph_, stream_), "cudaGraphLaunch"); }
  size_t nodes() const { return nodes_; }

 private:
  // Whole before the capture begins, so that what fails in it gives back what is there.
  explicit Replay(cudaStream_t stream) : stream_(stream) {}

  const cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
  size_t nodes_ = 0;
};

}  // namespace fccl::test
