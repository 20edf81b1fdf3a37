// The protocol texts instantiated for CUDA, several ranks on one GPU: a stream per rank, grids small enough to run side
// by side. Sums, residuals and codes exactly as the references say, norms within their tolerance, all ranks the same
// bytes.
#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>
#include <random>

#include "kernels/cuda/cuda_kernels.h"
#include "tests/support/catch.h"
#include "tests/support/reference.h"
#include "tests/support/test_data.h"

using namespace fccl;
using fccl::test::Bytes;

namespace {

constexpr uint64_t kEpochBytes = 64 << 20;

#define REQUIRE_CUDA(expr)                            \
  do {                                                \
    const cudaError_t code_ = (expr);                 \
    INFO(#expr << ": " << cudaGetErrorString(code_)); \
    REQUIRE(code_ == cudaSuccess);                    \
  } while (0)

bool haveDevice() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes) : bytes_(bytes) { REQUIRE_CUDA(cudaMalloc(&data_, bytes == 0 ? 16 : bytes)); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { cudaFree(data_); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  void put(const Bytes& from) { REQUIRE_CUDA(cudaMemcpy(data_, from.data(), from.size(), cudaMemcpyHostToDevice)); }
  Bytes get() const {
    Bytes to(bytes_);
    REQUIRE_CUDA(cudaMemcpy(to.data(), data_, bytes_, cudaMemcpyDeviceToHost));
    return to;
  }
  void poison() { REQUIRE_CUDA(cudaMemset(data_, 0xcd, bytes_)); }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

// Ranks that share the current device.
class Ranks {
 public:
  explicit Ranks(int ranks, uint64_t timeoutNanoseconds = 5'000'000'000) {
    REQUIRE_CUDA(cuda::load(ranks > 1));
    REQUIRE_CUDA(cuda::readDeviceFacts(0, &facts_));
    facts_.ranksOnDevice = ranks;
    hostWords_ = std::make_unique<DeviceBuffer>(sizeof(cuda::HostWords));
    hostWords_->put(Bytes(sizeof(cuda::HostWords), 0));
    for (int r = 0; r < ranks; r++) {
      memory_.push_back(std::make_unique<DeviceBuffer>(3 * kEpochBytes));
      state_.push_back(std::make_unique<DeviceBuffer>(sizeof(cuda::DeviceState)));
      state_.back()->put(Bytes(sizeof(cuda::DeviceState), 0));
      REQUIRE_CUDA(cuda::arm(memory_.back()->as<char>(), 3 * kEpochBytes, nullptr));
      streams_.emplace_back();
      REQUIRE_CUDA(cudaStreamCreateWithFlags(&streams_.back(), cudaStreamNonBlocking));
    }
    REQUIRE_CUDA(cudaDeviceSynchronize());
    for (int r = 0; r < ranks; r++) {
      cuda::CudaWorld world{};
      for (int p = 0; p < ranks; p++) world.memory[p] = memory_[static_cast<size_t>(p)]->as<char>();
      world.rank = r;
      world.ranks = ranks;
      world.epochBytes = kEpochBytes;
      world.state = state_[static_cast<size_t>(r)]->as<cuda::DeviceState>();
      world.hostWords = hostWords_->as<cuda::HostWords>();
      world.timeoutNanoseconds = timeoutNanoseconds;
      worlds_.push_back(world);
    }
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  ~Ranks() {
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }
  int count() const { return static_cast<int>(worlds_.size()); }
  void launch(int r, cuda::Protocol protocol, fcclDataType_t dtype, const RowArgs& rows,
              const cuda::ShapeWish& wish = {}) const {
    cuda::Launch launch;
    const char* reason = nullptr;
    REQUIRE_CUDA(cuda::plan(facts_, world(r), cuda::shapeOf(protocol, dtype, rows), wish, &launch, &reason));
    INFO("no kernel: " << (reason == nullptr ? "" : reason));
    REQUIRE(launch.kernel != nullptr);
    REQUIRE_CUDA(cuda::launch(launch, dtype, world(r), rows, stream(r)));
  }
  const cuda::CudaWorld& world(int r) const { return worlds_[static_cast<size_t>(r)]; }
  cudaStream_t stream(int r) const { return streams_[static_cast<size_t>(r)]; }
  bool aborted(int r) const {
    cuda::DeviceState state;
    std::memcpy(&state, state_[static_cast<size_t>(r)]->get().data(), sizeof state);
    return state.aborted != 0;
  }

 private:
  std::vector<std::unique_ptr<DeviceBuffer>> memory_;
  std::vector<std::unique_ptr<DeviceBuffer>> state_;
  std::vector<cudaStream_t> streams_;
  std::vector<cuda::CudaWorld> worlds_;
  std::unique_ptr<DeviceBuffer> hostWords_;  // device memory does for a test
  cuda::DeviceFacts facts_;
};

struct Case {
  cuda::Protocol protocol;
  fcclDataType_t dtype;
  int64_t rows;
  int64_t cols;
  bool norm;
  QuantKind quant;
  cuda::ShapeWish wish = {};

  size_t elements() const { return static_cast<size_t>(rows * cols); }
  size_t bytes() const { return elements() * test::dtypeBytes(dtype); }
};

Bytes data(const Case& c, size_t elements, test::DataKind kind, unsigned call, int rank, int ranks) {
  Bytes bytes(elements * test::dtypeBytes(c.dtype));
  for (size_t i = 0; i < elements; i++) {
    const auto cols = static_cast<size_t>(c.cols);
    test::store(c.dtype, bytes.data(), i, test::inputValue(kind, c.dtype, call, rank, ranks, i / cols, i % cols));
  }
  return bytes;
}

struct RankBuffers {
  DeviceBuffer input, residual, weight, reduced, residualOut, normOut, quantOut, scaleOut, scale;

  explicit RankBuffers(const Case& c)
      : input(c.bytes()),
        residual(c.bytes()),
        weight(static_cast<size_t>(c.cols) * test::dtypeBytes(c.dtype)),
        reduced(c.bytes()),
        residualOut(c.bytes()),
        normOut(c.bytes()),
        quantOut(c.elements() / (c.quant == QuantKind::kNvfp4 ? 2 : 1)),
        scaleOut(test::scaleBytes(c.rows, c.cols, fcclScaleSwizzled128x4)),
        scale(4) {}

  RowArgs args(const Case& c) const {
    RowArgs a;
    a.input = input.as<void>();
    a.reducedOut = reduced.as<void>();
    a.rows = c.rows;
    a.cols = c.cols;
    if (!c.norm) return a;
    a.residual = residual.as<void>();
    a.weight = weight.as<void>();
    a.residualOut = residualOut.as<void>();
    a.normOut = normOut.as<void>();
    a.quantOut = quantOut.as<uint8_t>();
    a.scaleOut = scaleOut.as<uint8_t>();
    a.quantScale = scale.as<float>();
    a.eps = 1e-5f;
    a.quant = c.quant;
    return a;
  }
};

void runCase(Ranks& ranks, const Case& c, unsigned call, test::DataKind kind = test::DataKind::kPlain) {
  INFO("protocol " << int(c.protocol) << " dtype " << int(c.dtype) << " ranks " << ranks.count() << " [" << c.rows
                   << ", " << c.cols << "] norm " << c.norm << " quant " << int(c.quant) << " call " << call);
  const Bytes residual = data(c, c.elements(), test::DataKind::kPlain, call, 1000, ranks.count());
  const Bytes weight = data(c, static_cast<size_t>(c.cols), test::DataKind::kPlain, call, 2000, ranks.count());
  const float scaleValue = c.quant == QuantKind::kFp8 ? 0.02f : 300.0f;
  Bytes scale(4);
  std::memcpy(scale.data(), &scaleValue, 4);
  std::vector<Bytes> inputs;
  std::vector<std::unique_ptr<RankBuffers>> buffers;
  for (int r = 0; r < ranks.count(); r++) {
    inputs.push_back(data(c, c.elements(), kind, call, r, ranks.count()));
    buffers.push_back(std::make_unique<RankBuffers>(c));
    RankBuffers& b = *buffers.back();
    b.input.put(inputs.back());
    b.residual.put(residual);
    b.weight.put(weight);
    b.scale.put(scale);
    for (DeviceBuffer* out : {&b.reduced, &b.residualOut, &b.normOut, &b.quantOut, &b.scaleOut}) out->poison();
  }
  REQUIRE_CUDA(cudaDeviceSynchronize());
  for (int r = 0; r < ranks.count(); r++) {
    const RowArgs a = buffers[static_cast<size_t>(r)]->args(c);
    ranks.launch(r, c.protocol, c.dtype, a, c.wish);
  }
  REQUIRE_CUDA(cudaDeviceSynchronize());

  std::vector<const void*> pointers;
  for (const Bytes& input : inputs) pointers.push_back(input.data());
  const Bytes wantReduced = test::referenceAllReduce(c.dtype, fcclSum, pointers, c.elements());
  const Bytes wantResidual = test::referenceResidual(c.dtype, wantReduced.data(), residual.data(), c.elements());
  for (int r = 0; r < ranks.count(); r++) {
    INFO("rank " << r);
    REQUIRE_FALSE(ranks.aborted(r));
    const RankBuffers& b = *buffers[static_cast<size_t>(r)];
    REQUIRE(test::compareAllReduce(c.dtype, fcclSum, wantReduced.data(), b.reduced.get().data(), c.elements()) == "");
    if (!c.norm) continue;
    REQUIRE(test::compareElements(c.dtype, wantResidual.data(), b.residualOut.get().data(), c.elements(), true) == "");
    const Bytes norm = b.normOut.get();
    REQUIRE(norm == buffers[0]->normOut.get());
    const size_t rowBytes = c.bytes() / static_cast<size_t>(c.rows);
    for (size_t row = 0; row < static_cast<size_t>(c.rows); row++) {
      const auto want =
          test::referenceNorm(c.dtype, wantResidual.data() + row * rowBytes, weight.data(), c.dtype, c.cols, 0, 1e-5f);
      REQUIRE(test::compareNorm(c.dtype, want, norm.data() + row * rowBytes) == "");
    }
    if (c.quant == QuantKind::kFp8) {
      REQUIRE(b.quantOut.get() == test::referenceFp8(c.dtype, norm.data(), c.elements(), scaleValue));
    }
    if (c.quant == QuantKind::kNvfp4) {
      const auto want = test::referenceNvfp4(c.dtype, norm.data(), c.rows, c.cols, scaleValue, fcclScaleSwizzled128x4);
      REQUIRE(b.quantOut.get() == want.codes);
      REQUIRE(b.scaleOut.get() == want.scales);
    }
  }
}

constexpr cuda::Protocol kProtocols[] = {cuda::Protocol::kOneshot, cuda::Protocol::kTwoshot};
constexpr fcclDataType_t kTypes[] = {fcclBfloat16, fcclFloat16, fcclFloat32};

}  // namespace

TEST_CASE("CUDA kernels: all protocols, types, patterns and ranks on one shared GPU") {
  if (!haveDevice()) FCCL_SKIP("no CUDA device here");
  unsigned call = 0;
  for (int count : {1, 2, 3, 4, 8}) {
    Ranks ranks(count);
    for (cuda::Protocol protocol : kProtocols) {
      for (fcclDataType_t dtype : kTypes) {
        for (const auto& [rows, cols] :
             {std::pair<int64_t, int64_t>(1, 7), {1, 64}, {3, 96}, {7, 2880}, {40, 4096}, {13, 2881}}) {
          runCase(ranks, Case{protocol, dtype, rows, cols, false, QuantKind::kNone}, call++);
          for (QuantKind quant : {QuantKind::kNone, QuantKind::kFp8, QuantKind::kNvfp4}) {
            if (quant == QuantKind::kNvfp4 && cols % 16 != 0) continue;
            runCase(ranks, Case{protocol, dtype, rows, cols, true, quant}, call++);
          }
        }
      }
    }
  }
}

TEST_CASE("CUDA kernels: every launch shape gives the same bytes") {
  if (!haveDevice()) FCCL_SKIP("no CUDA device here");
  unsigned call = 0;
  for (int count : {2, 3, 8}) {
    Ranks ranks(count);
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>(1, 8192), {5, 2880}, {33, 4096}, {200, 1024}}) {
      for (const cuda::ShapeWish& wish : {cuda::ShapeWish{},
                                          {1, 0, 8, 0, false},
                                          {1, 0, 3, 0, false},
                                          {1, 0, 8, 0, true},
                                          {1, 0, 3, 2, true},
                                          {2, 0, 0, 0, false},
                                          {2, 0, 0, 0, true},
                                          {2, 0, 0, 3, true},
                                          {4, 0, 0, 0, false},
                                          {4, 0, 0, 0, true},
                                          {4, 0, 0, 7, true}}) {
        runCase(ranks, Case{cuda::Protocol::kOneshot, fcclBfloat16, rows, cols, true, QuantKind::kNvfp4, wish}, call++);
        runCase(ranks, Case{cuda::Protocol::kOneshot, fcclBfloat16, rows, cols, true, QuantKind::kFp8, wish}, call++);
        runCase(ranks, Case{cuda::Protocol::kOneshot, fcclFloat16, rows, cols, false, QuantKind::kNone, wish}, call++);
      }
    }
  }
}

TEST_CASE("CUDA kernels: NaN, Inf, -0, subnormals and cancellation never stop a wait") {
  if (!haveDevice()) FCCL_SKIP("no CUDA device here");
  Ranks ranks(3);
  unsigned call = 0;
  for (cuda::Protocol protocol : kProtocols) {
    for (fcclDataType_t dtype : kTypes) {
      for (test::DataKind kind : {test::DataKind::kSpecial, test::DataKind::kCancellation}) {
        runCase(ranks, Case{protocol, dtype, 20, 96, false, QuantKind::kNone}, call++, kind);
      }
    }
  }
}

TEST_CASE("CUDA kernels: shapes, types and protocols mixed back to back on one workspace") {
  if (!haveDevice()) FCCL_SKIP("no CUDA device here");
  Ranks ranks(2);
  std::mt19937 random(7);
  for (unsigned call = 0; call < 300; call++) {
    const auto cols = static_cast<int64_t>(1 + random() % 1500);
    const auto rows = static_cast<int64_t>(1 + random() % 40);
    runCase(ranks,
            Case{kProtocols[random() % 2], kTypes[random() % 3], rows, cols, random() % 2 == 0,
                 random() % 2 == 0 ? QuantKind::kFp8 : QuantKind::kNone},
            call);
  }
}

TEST_CASE("CUDA kernels: a captured graph is replayed with new inputs, mixed with eager calls of another shape") {
  if (!haveDevice()) FCCL_SKIP("no CUDA device here");
  Ranks ranks(2);
  const Case captured{cuda::Protocol::kOneshot, fcclBfloat16, 5, 4096, false, QuantKind::kNone};
  constexpr size_t kCallsPerGraph = 4;
  std::vector<std::unique_ptr<RankBuffers>> buffers;
  std::vector<cudaGraphExec_t> graphs;
  for (int r = 0; r < 2; r++) {
    buffers.push_back(std::make_unique<RankBuffers>(captured));
    const RowArgs a = buffers.back()->args(captured);
    cudaGraph_t graph;
    REQUIRE_CUDA(cudaStreamBeginCapture(ranks.stream(r), cudaStreamCaptureModeThreadLocal));
    for (size_t i = 0; i < kCallsPerGraph; i++) {
      ranks.launch(r, captured.protocol, captured.dtype, a);
    }
    REQUIRE_CUDA(cudaStreamEndCapture(ranks.stream(r), &graph));
    size_t nodes = 0;
    REQUIRE_CUDA(cudaGraphGetNodes(graph, nullptr, &nodes));
    REQUIRE(nodes == kCallsPerGraph);
    graphs.emplace_back();
    REQUIRE_CUDA(cudaGraphInstantiate(&graphs.back(), graph, 0));
    REQUIRE_CUDA(cudaGraphDestroy(graph));
  }
  for (unsigned round = 0; round < 200; round++) {
    std::vector<Bytes> inputs;
    for (int r = 0; r < 2; r++) {
      inputs.push_back(data(captured, captured.elements(), test::DataKind::kPlain, round, r, 2));
      buffers[static_cast<size_t>(r)]->input.put(inputs.back());
      buffers[static_cast<size_t>(r)]->reduced.poison();
    }
    REQUIRE_CUDA(cudaDeviceSynchronize());
    for (int r = 0; r < 2; r++) REQUIRE_CUDA(cudaGraphLaunch(graphs[static_cast<size_t>(r)], ranks.stream(r)));
    REQUIRE_CUDA(cudaDeviceSynchronize());
    const Bytes want =
        test::referenceAllReduce(fcclBfloat16, fcclSum, {inputs[0].data(), inputs[1].data()}, captured.elements());
    for (const auto& b : buffers) {
      REQUIRE(test::compareAllReduce(fcclBfloat16, fcclSum, want.data(), b->reduced.get().data(),
                                     captured.elements()) == "");
    }
    if (round % 3 == 0)
      runCase(ranks, Case{cuda::Protocol::kTwoshot, fcclFloat32, 9, 96, true, QuantKind::kNvfp4}, round);
  }
  for (cudaGraphExec_t graph : graphs) REQUIRE_CUDA(cudaGraphExecDestroy(graph));
}

TEST_CASE("CUDA kernels: a wait for a rank that never launches ends at the time limit and leaves the context usable") {
  if (!haveDevice()) FCCL_SKIP("no CUDA device here");
  Ranks ranks(2, 200'000'000);
  const Case c{cuda::Protocol::kOneshot, fcclBfloat16, 3, 64, false, QuantKind::kNone};
  const RankBuffers b(c);
  ranks.launch(0, c.protocol, c.dtype, b.args(c));
  REQUIRE_CUDA(cudaDeviceSynchronize());
  CHECK(ranks.aborted(0));
  Ranks fresh(2);
  runCase(fresh, c, 1);
}
