// The order that the NCCL shim gives calls on different streams, on CUDA's streams.
#include <cuda_runtime_api.h>

#include <chrono>
#include <thread>

#include "lib/shim/stream_order.h"
#include "tests/gpu/device_ranks.h"
#include "tests/support/catch.h"

using fccl::shim::StreamOrder;

namespace {

void wait(void*) { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }

// A word of the GPU's that calls write and read.
class Word {
 public:
  Word() {
    REQUIRE(cudaMalloc(reinterpret_cast<void**>(&word_), sizeof(int)) == cudaSuccess);
    REQUIRE(cudaMemset(word_, 0, sizeof(int)) == cudaSuccess);
    REQUIRE(cudaMallocHost(reinterpret_cast<void**>(&seen_), sizeof(int)) == cudaSuccess);
    *seen_ = -1;
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  }
  ~Word() {
    cudaFree(word_);
    cudaFreeHost(seen_);
  }
  Word(const Word&) = delete;
  Word& operator=(const Word&) = delete;

  // Takes its time.
  void write(cudaStream_t stream) {
    REQUIRE(cudaLaunchHostFunc(stream, wait, nullptr) == cudaSuccess);
    REQUIRE(cudaMemsetAsync(word_, 1, sizeof(int), stream) == cudaSuccess);
  }
  void read(cudaStream_t stream) {
    REQUIRE(cudaMemcpyAsync(seen_, word_, sizeof(int), cudaMemcpyDeviceToHost, stream) == cudaSuccess);
  }
  // Once the stream has come to rest.
  bool readWasAfterWrite() const { return *seen_ == 0x01010101; }

 private:
  int* word_ = nullptr;
  int* seen_ = nullptr;
};

cudaStream_t newStream() {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  return stream;
}

}  // namespace

TEST_CASE("NCCL shim on CUDA: a call follows the one before, whose stream is destroyed", "[cuda][nccl]") {
  FCCL_NEED_GPUS(1);
  StreamOrder order(0);
  for (const bool onDefault : {false, true}) {
    Word word;
    cudaStream_t first = onDefault ? nullptr : newStream();
    order.before(first);
    word.write(first);
    order.after(first);
    if (!onDefault) REQUIRE(cudaStreamDestroy(first) == cudaSuccess);
    cudaStream_t second = newStream();
    order.before(second);
    word.read(second);
    order.after(second);
    REQUIRE(cudaStreamSynchronize(second) == cudaSuccess);
    CHECK(word.readWasAfterWrite());
    REQUIRE(cudaStreamDestroy(second) == cudaSuccess);
  }
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("NCCL shim on CUDA: a capture stays as it is", "[cuda][nccl]") {
  FCCL_NEED_GPUS(1);
  StreamOrder order(0);
  Word word;
  cudaStream_t eager = newStream();
  cudaStream_t captured = newStream();
  order.before(eager);
  word.write(eager);
  order.after(eager);
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamBeginCapture(captured, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  order.before(captured);
  word.read(captured);
  order.after(captured);
  REQUIRE(cudaStreamEndCapture(captured, &graph) == cudaSuccess);
  size_t nodes = 0;
  REQUIRE(cudaGraphGetNodes(graph, nullptr, &nodes) == cudaSuccess);
  CHECK(nodes == 1);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  for (cudaStream_t stream : {eager, captured}) REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}
