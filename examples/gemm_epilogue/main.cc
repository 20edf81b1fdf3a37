// A row-parallel layer on several ranks, with and without the GEMM's epilogue writing into the peers' slots:
//
//   sent     GEMM -> partial; fcclAllReduceFused sends it, waits for the peers', adds the residual, norms
//   pushed   GEMM -> partial and the peers' slots; the same call, inputPushed = 1, has nothing to send
//
// Both give the same bits. Ranks are threads, each with a GPU of its own where there are enough, else they share them.
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "examples/common/bf16.h"
#include "examples/common/timing.h"
#include "fccl_device.h"
#include "gemm.h"

namespace {

constexpr int kSkipped = 4;
constexpr float kEps = 1e-5f;

struct Options {
  int ranks = 2;
  int tokens = 16;
  int k = 1024;  // of each rank
  int hidden = 8192;
  int calls = 50;  // of one graph
  int rounds = 21;
};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "gemm_epilogue: %s\n", what.c_str());
  std::exit(1);
}
void cuda(cudaError_t code, const char* what) {
  if (code != cudaSuccess) fail(std::string(what) + ": " + cudaGetErrorString(code));
}
void fccl(fcclResult_t result, fcclComm_t comm) {
  if (result != fcclSuccess) fail(fcclGetLastError(comm));
}

// In [-1, 1), the same in every run.
float valueOf(uint32_t seed, uint32_t i) {
  uint32_t h = i * 0x9e3779b1u ^ seed * 0x85ebca77u;
  h = (h ^ h >> 15) * 0x2c1b3c6du;
  h = (h ^ h >> 12) * 0x297a2d39u;
  return static_cast<float>(static_cast<int32_t>(h ^ h >> 15)) * 0x1p-31f;
}
std::vector<Bf16> valuesOf(uint32_t seed, size_t count, float scale) {
  std::vector<Bf16> values(count);
  for (size_t i = 0; i < count; i++) values[i] = Bf16(scale * valueOf(seed, static_cast<uint32_t>(i)));
  return values;
}

class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t count) : bytes_(count * sizeof(Bf16)) {
    cuda(cudaMalloc(&data_, bytes_), "cudaMalloc");
    cuda(cudaMemset(data_, 0, bytes_), "cudaMemset");
  }
  explicit DeviceBuffer(const std::vector<Bf16>& values) : DeviceBuffer(values.size()) {
    cuda(cudaMemcpy(data_, values.data(), bytes_, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { cudaFree(data_); }

  void* get() const { return data_; }
  std::vector<Bf16> download() const {
    std::vector<Bf16> values(bytes_ / sizeof(Bf16));
    cuda(cudaMemcpy(values.data(), data_, bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }

 private:
  size_t bytes_;
  void* data_ = nullptr;
};

// The same on every rank but for activations and weights, of which each has its part of k.
struct Data {
  std::vector<Bf16> activations, weights, residual, normWeight;

  Data(const Options& o, int rank)
      : activations(valuesOf(static_cast<uint32_t>(100 + rank), size_t(o.tokens) * size_t(o.k), 1.0f)),
        weights(valuesOf(static_cast<uint32_t>(200 + rank), size_t(o.k) * size_t(o.hidden),
                         1.0f / std::sqrt(static_cast<float>(o.k)))),
        residual(valuesOf(300, size_t(o.tokens) * size_t(o.hidden), 1.0f)),
        normWeight(valuesOf(400, size_t(o.hidden), 1.0f)) {}
};

struct Outputs {
  std::vector<Bf16> residual, norm;
  bool operator==(const Outputs& other) const {
    const auto same = [](const std::vector<Bf16>& a, const std::vector<Bf16>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(Bf16)) == 0;
    };
    return same(residual, other.residual) && same(norm, other.norm);
  }
};

enum class Way { kGemmAlone, kSent, kPushed };
constexpr Way kWays[] = {Way::kGemmAlone, Way::kSent, Way::kPushed};

// One rank's layer on its GPU.
class Layer {
 public:
  Layer(const Options& o, int rank, fcclComm_t comm)
      : options_(o),
        data_(o, rank),
        comm_(comm),
        activations_(data_.activations),
        weights_(data_.weights),
        residual_(data_.residual),
        normWeight_(data_.normWeight),
        partial_(data_.residual.size()),
        residualOut_(data_.residual.size()),
        normOut_(data_.residual.size()) {
    cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    cuda(cudaEventCreate(&begin_), "cudaEventCreate");
    cuda(cudaEventCreate(&end_), "cudaEventCreate");
    cuda(loadGemm(), "loadGemm");
    fccl(fcclDevicePushInit(comm_, o.tokens, o.hidden, fcclBfloat16, &push_), comm_);
    cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  ~Layer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  const Data& data() const { return data_; }

  void enqueue(Way way) const {
    const Gemm gemm{activations_.get(), weights_.get(), partial_.get(), options_.tokens, options_.k, options_.hidden};
    if (way == Way::kPushed) {
      cuda(multiplyAndPush(gemm, push_, stream_), "multiplyAndPush");
    } else {
      cuda(multiply(gemm, stream_), "multiply");
    }
    if (way == Way::kGemmAlone) return;
    fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
    args.pattern = fcclPatternResidualRmsNorm;
    args.dtype = fcclBfloat16;
    args.tokens = options_.tokens;
    args.hidden = options_.hidden;
    args.input = partial_.get();
    args.residual = residual_.get();
    args.weight = normWeight_.get();
    args.eps = kEps;
    args.residualOut = residualOut_.get();
    args.normOut = normOut_.get();
    args.strategy = fcclStrategyOneshot;  // what a pushed call is: both ways alike
    args.inputPushed = way == Way::kPushed ? 1 : 0;
    fccl(fcclAllReduceFused(&args, comm_, stream_), comm_);
  }

  void synchronize() const {
    cuda(cudaStreamSynchronize(stream_), "the layer");
    fcclResult_t async = fcclSuccess;
    fccl(fcclCommGetAsyncError(comm_, &async), comm_);
    fccl(async, comm_);
  }
  Outputs outputs() const { return {residualOut_.download(), normOut_.download()}; }

  cudaGraphExec_t capture(Way way) const {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    for (int i = 0; i < options_.calls; i++) enqueue(way);
    cuda(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    cuda(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    cuda(cudaGraphUpload(executable, stream_), "cudaGraphUpload");
    synchronize();
    return executable;
  }
  // Microseconds per call.
  double replay(cudaGraphExec_t executable) const {
    cuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    cuda(cudaGraphLaunch(executable, stream_), "cudaGraphLaunch");
    cuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
    synchronize();
    float milliseconds = 0;
    cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1000 / options_.calls;
  }

 private:
  const Options options_;
  const Data data_;
  fcclComm_t comm_;
  DeviceBuffer activations_, weights_, residual_, normWeight_, partial_, residualOut_, normOut_;
  fcclDevicePush_t push_ = FCCL_DEVICE_PUSH_INITIALIZER;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

// Against float64: elements of residualOut here and there, and rows of normOut from residualOut. Bounds are the
// roundings to bf16 (2^-8 of the value each) on the way.
std::string wrongAgainstFloat64(const Options& o, const std::vector<std::unique_ptr<Layer>>& layers,
                                const Outputs& got) {
  const auto tokens = static_cast<size_t>(o.tokens);
  const auto hidden = static_cast<size_t>(o.hidden);
  const auto depth = static_cast<size_t>(o.k);
  const Data& common = layers[0]->data();
  for (size_t sample = 0; sample < 500; sample++) {
    const size_t row = sample * 7 % tokens;
    const size_t column = sample * 1237 % hidden;
    const size_t at = row * hidden + column;
    double sum = 0;
    double bound = 0;
    for (const auto& layer : layers) {
      double partial = 0;
      for (size_t i = 0; i < depth; i++) {
        partial += static_cast<double>(layer->data().activations[row * depth + i]) *
                   static_cast<double>(layer->data().weights[i * hidden + column]);
      }
      sum += partial;
      bound += 0x1p-8 * std::abs(partial) + 1e-4;
    }
    const double wanted = sum + static_cast<double>(common.residual[at]);
    bound += 0x1p-8 * (std::abs(sum) + std::abs(wanted));
    if (std::abs(static_cast<double>(got.residual[at]) - wanted) > bound) {
      return "residualOut[" + std::to_string(row) + "][" + std::to_string(column) + "] is " +
             std::to_string(static_cast<float>(got.residual[at])) + " in place of " + std::to_string(wanted);
    }
  }
  for (size_t row = 0; row < tokens; row++) {
    double squares = 0;
    for (size_t c = 0; c < hidden; c++) squares += std::pow(static_cast<double>(got.residual[row * hidden + c]), 2);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(hidden) + static_cast<double>(kEps));
    for (size_t c = 0; c < hidden; c++) {
      const double wanted =
          static_cast<double>(got.residual[row * hidden + c]) * scale * static_cast<double>(common.normWeight[c]);
      if (std::abs(static_cast<double>(got.norm[row * hidden + c]) - wanted) <= 0x1p-8 * std::abs(wanted) + 1e-30) {
        continue;
      }
      return "normOut[" + std::to_string(row) + "][" + std::to_string(c) + "] is not the norm of residualOut";
    }
  }
  return "";
}

// The body on one thread per rank, each with its GPU current.
void onRanks(int ranks, int gpus, const std::function<void(size_t rank)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; r++) {
    threads.emplace_back([=] {
      cuda(cudaSetDevice(r % gpus), "cudaSetDevice");
      body(static_cast<size_t>(r));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

Options parse(int argc, char** argv) {
  Options o;
  const std::pair<const char*, int*> known[] = {{"--ranks", &o.ranks}, {"--tokens", &o.tokens},
                                                {"--k", &o.k},         {"--hidden", &o.hidden},
                                                {"--calls", &o.calls}, {"--rounds", &o.rounds}};
  for (int i = 1; i < argc; i += 2) {
    const auto* found = std::find_if(std::begin(known), std::end(known),
                                     [&](const auto& option) { return std::strcmp(option.first, argv[i]) == 0; });
    if (found == std::end(known) || i + 1 == argc || (*found->second = std::atoi(argv[i + 1])) <= 0) {
      fail(
          "usage: gemm_epilogue [--ranks 2] [--tokens 16] [--k 1024] [--hidden 8192] [--calls 50] [--rounds 21]; k is "
          "a rank's share");
    }
  }
  if (o.k % 64 != 0 || o.hidden % 64 != 0) fail("--k and --hidden must be multiples of 64, the GEMM's tile");
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  const Options o = parse(argc, argv);
  // Ranks that share a GPU must not share a hardware queue. Read when CUDA starts.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::printf("SKIPPED: there is no GPU here\n");
    return kSkipped;
  }
  gpus = std::min(gpus, o.ranks);
  std::vector<fcclComm_t> comms(static_cast<size_t>(o.ranks));
  fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
  config.deviceType = fcclDeviceCuda;
  config.allowSharedDevice = 1;
  fccl(fcclCommInitAll(comms.data(), o.ranks, &config), nullptr);

  const auto ranks = static_cast<size_t>(o.ranks);
  std::vector<std::unique_ptr<Layer>> layers(ranks);
  std::vector<Outputs> sent(ranks), pushed(ranks);
  std::vector<std::vector<double>> times(std::size(kWays));
  std::vector<double> slowest(ranks);
  std::barrier together(o.ranks);
  onRanks(o.ranks, gpus, [&](size_t r) {
    layers[r] = std::make_unique<Layer>(o, static_cast<int>(r), comms[r]);
    const Layer& layer = *layers[r];
    // Memory is allocated and graphs are made while no kernel waits for a peer.
    together.arrive_and_wait();
    layer.enqueue(Way::kSent);
    layer.synchronize();
    together.arrive_and_wait();
    sent[r] = layer.outputs();
    together.arrive_and_wait();
    layer.enqueue(Way::kPushed);
    layer.synchronize();
    together.arrive_and_wait();
    pushed[r] = layer.outputs();

    std::vector<cudaGraphExec_t> graphs;
    for (const Way way : kWays) graphs.push_back(layer.capture(way));
    for (int round = -3; round < o.rounds; round++) {
      for (size_t way = 0; way < graphs.size(); way++) {
        together.arrive_and_wait();
        slowest[r] = layer.replay(graphs[way]);
        together.arrive_and_wait();
        if (r == 0 && round >= 0) times[way].push_back(*std::max_element(slowest.begin(), slowest.end()));
      }
    }
    together.arrive_and_wait();
    if (!(layer.outputs() == pushed[r])) fail("a replayed graph gave other bits than the first call");
    for (cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
  });

  for (size_t r = 0; r < ranks; r++) {
    if (!(pushed[r] == sent[r])) fail("rank " + std::to_string(r) + ": pushed and sent give different bits");
    if (!(pushed[r] == pushed[0])) fail("rank " + std::to_string(r) + " has other bits than rank 0");
  }
  if (const std::string wrong = wrongAgainstFloat64(o, layers, pushed[0]); !wrong.empty()) fail(wrong);

  std::printf("%d ranks on %d GPU(s): [%d, %d] x [%d, %d] of bf16, then RESIDUAL_RMS_NORM\n", o.ranks, gpus, o.tokens,
              o.k, o.k, o.hidden);
  std::printf("microseconds, median of %d replays of a graph of %d, the slowest rank:\n", o.rounds, o.calls);
  const double alone = percentile(times[0], 0.5);
  std::printf("  GEMM alone                            %8.2f\n", alone);
  for (const Way way : {Way::kSent, Way::kPushed}) {
    const double time = percentile(times[static_cast<size_t>(way)], 0.5);
    std::printf("  GEMM and all-reduce, input %s     %8.2f   GEMM alone + %.2f\n",
                way == Way::kSent ? "sent  " : "pushed", time, time - alone);
  }
  std::printf(
      "verified: the same bits pushed and sent, on all ranks, eager and replayed; within rounding of float64\n");
  onRanks(o.ranks, gpus, [&](size_t r) {
    layers[r].reset();
    fccl(fcclCommDestroy(comms[r]), nullptr);
  });
  return 0;
}
