// fccl-kernel-shapes: what a call of the CUDA kernels takes for each launch shape, ranks sharing one GPU, ranks on
// several, or one rank with its peer looped back into its own slots (protocol, launch and epilogue of a rank that has
// its GPU to itself, without the link). The planner's figures (kernels/cuda/plan.cc) come from here.
//
// Method: a graph of 20 calls per rank, all ranks released at once by a gate, 5 + 30 replays, the median over replays
// of the slowest rank, per call. Calls alternate between the sets of buffers.
#include <cuda_runtime_api.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_kernels.h"
#include "tests/perf/cuda/kernel_gate.h"

using namespace fccl;

namespace {

#define CHECK_CUDA(expr)                                                                             \
  do {                                                                                               \
    if (const cudaError_t code_ = (expr); code_ != cudaSuccess) {                                    \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #expr, cudaGetErrorString(code_)); \
      std::exit(1);                                                                                  \
    }                                                                                                \
  } while (0)

constexpr int kCallsPerGraph = 20;
constexpr int kWarmReplays = 5;
constexpr int kReplays = 30;

struct Options {
  int ranks = 2;
  int gpus = 1;
  bool loopback = false;
  int sets = 2;
  bool noPdl = false;
  bool sameDomain = false;
  std::vector<int64_t> tokens{1, 8, 64, 128, 256, 1024};
  std::vector<int64_t> hidden{8192};
  std::vector<std::string> patterns{"plain", "norm", "fp8", "nvfp4"};
  std::vector<std::string> wishes{"0,0,0,0"};
  std::string protocol = "oneshot";
};

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) { CHECK_CUDA(cudaMalloc(&data_, bytes)); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { cudaFree(data_); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

// bf16 values around 1, different in every element.
void fill(void* device, size_t elements, unsigned seed) {
  std::vector<uint16_t> host(elements);
  uint32_t state = seed * 2654435761u + 1;
  for (uint16_t& v : host) {
    state = state * 1664525u + 1013904223u;
    v = static_cast<uint16_t>(0x3f00u + (state >> 25) + (state >> 16 & 0x8000u));
  }
  CHECK_CUDA(cudaMemcpy(device, host.data(), elements * 2, cudaMemcpyHostToDevice));
}

struct Buffers {
  DeviceMemory input, residual, residualOut, normOut, quantOut, scaleOut;
  explicit Buffers(size_t elements)
      : input(elements * 2),
        residual(elements * 2),
        residualOut(elements * 2),
        normOut(elements * 2),
        quantOut(elements),
        scaleOut(elements / 16 + (1 << 20)) {}
};

struct Rank {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  std::unique_ptr<DeviceMemory> slots, state, weight, scale;
  std::vector<std::unique_ptr<Buffers>> sets;
  cuda::CudaWorld world{};
};

class Bench {
 public:
  Bench(const Options& options, int64_t tokens, int64_t hidden) : options_(options), tokens_(tokens), hidden_(hidden) {
    void* host = nullptr;
    void* mapped = nullptr;
    use(0);
    CHECK_CUDA(cudaHostAlloc(&host, sizeof(int), cudaHostAllocMapped | cudaHostAllocPortable));
    CHECK_CUDA(cudaHostGetDevicePointer(&mapped, host, 0));
    gateHost_ = static_cast<volatile int*>(host);
    *gateHost_ = 0;
    gateDevice_ = static_cast<const int*>(mapped);
    CHECK_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&hostWords_), sizeof(cuda::HostWords),
                             cudaHostAllocMapped | cudaHostAllocPortable));
    const auto elements = static_cast<size_t>(tokens * hidden);
    const int present = options.loopback ? 1 : options.ranks;
    epochBytes_ = (cuda::epochBytes(cuda::Protocol::kTwoshot, options.ranks, tokens, hidden, 2) +
                   cuda::epochBytes(cuda::Protocol::kOneshot, options.ranks, tokens, hidden, 2) + 4095) /
                  4096 * 4096;
    for (int r = 0; r < present; r++) {
      use(static_cast<size_t>(r));
      auto rank = std::make_unique<Rank>();
      CHECK_CUDA(cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking));
      CHECK_CUDA(cudaEventCreate(&rank->begin));
      CHECK_CUDA(cudaEventCreate(&rank->end));
      rank->slots = std::make_unique<DeviceMemory>(3 * epochBytes_);
      rank->state = std::make_unique<DeviceMemory>(sizeof(cuda::DeviceState));
      rank->weight = std::make_unique<DeviceMemory>(static_cast<size_t>(hidden) * 2);
      rank->scale = std::make_unique<DeviceMemory>(4);
      fill(rank->weight->as<void>(), static_cast<size_t>(hidden), 77);
      for (int s = 0; s < options.sets; s++) {
        rank->sets.push_back(std::make_unique<Buffers>(elements));
        fill(rank->sets.back()->input.as<void>(), elements, static_cast<unsigned>(r * 10 + s));
        fill(rank->sets.back()->residual.as<void>(), elements, static_cast<unsigned>(100 + s));
      }
      ranks_.push_back(std::move(rank));
    }
    reset();
  }
  ~Bench() {
    for (const auto& rank : ranks_) {
      cudaStreamDestroy(rank->stream);
      cudaEventDestroy(rank->begin);
      cudaEventDestroy(rank->end);
    }
    cudaFreeHost(const_cast<int*>(gateHost_));
    cudaFreeHost(hostWords_);
  }

  void run(const std::string& pattern, const cuda::ShapeWish& wish) {
    const float scale = pattern == "nvfp4" ? 336.0f : 0.03f;
    cuda::DeviceFacts facts;
    const int ranksOnDevice = (static_cast<int>(ranks_.size()) + options_.gpus - 1) / options_.gpus;
    for (int g = 0; g < options_.gpus; g++) {
      use(static_cast<size_t>(g));
      CHECK_CUDA(cuda::load(ranksOnDevice > 1));
      CHECK_CUDA(cuda::readDeviceFacts(g, &facts));
    }
    facts.ranksOnDevice = ranksOnDevice;
    facts.programmatic = !options_.noPdl;
    facts.remoteDomain = !options_.sameDomain;
    const auto protocol = options_.protocol == "twoshot" ? cuda::Protocol::kTwoshot : cuda::Protocol::kOneshot;
    cuda::Launch launch;
    std::vector<cudaGraphExec_t> graphs;
    for (size_t r = 0; r < ranks_.size(); r++) {
      use(r);
      const auto& rank = ranks_[r];
      CHECK_CUDA(cudaMemcpy(rank->scale->as<void>(), &scale, 4, cudaMemcpyHostToDevice));
      cudaGraph_t graph;
      CHECK_CUDA(cudaStreamBeginCapture(rank->stream, cudaStreamCaptureModeThreadLocal));
      for (int i = 0; i < kCallsPerGraph; i++) {
        const RowArgs rows = args(*rank, *rank->sets[static_cast<size_t>(i % options_.sets)], pattern);
        const char* reason = nullptr;
        CHECK_CUDA(cuda::plan(facts, rank->world, cuda::shapeOf(protocol, fcclBfloat16, rows), wish, &launch, &reason));
        if (launch.kernel == nullptr) {
          std::printf("%-6s T=%-5ld H=%-6ld no kernel: %s\n", pattern.c_str(), tokens_, hidden_, reason);
          CHECK_CUDA(cudaStreamEndCapture(rank->stream, &graph));
          return;
        }
        CHECK_CUDA(cuda::launch(launch, fcclBfloat16, rank->world, rows, rank->stream));
      }
      CHECK_CUDA(cudaStreamEndCapture(rank->stream, &graph));
      graphs.emplace_back();
      CHECK_CUDA(cudaGraphInstantiate(&graphs.back(), graph, 0));
      CHECK_CUDA(cudaGraphUpload(graphs.back(), rank->stream));
      CHECK_CUDA(cudaGraphDestroy(graph));
    }
    synchronize();
    std::vector<float> times;
    bool hung = false;
    for (int replay = 0; replay < kWarmReplays + kReplays && !hung; replay++) {
      gates_++;
      for (size_t r = 0; r < ranks_.size(); r++) {
        use(r);
        CHECK_CUDA(perf::gate(gateDevice_, gates_, ranks_[r]->stream));
        CHECK_CUDA(cudaEventRecord(ranks_[r]->begin, ranks_[r]->stream));
        CHECK_CUDA(cudaGraphLaunch(graphs[r], ranks_[r]->stream));
        CHECK_CUDA(cudaEventRecord(ranks_[r]->end, ranks_[r]->stream));
      }
      *gateHost_ = gates_;
      float slowest = 0;
      for (size_t r = 0; r < ranks_.size(); r++) {
        use(r);
        const auto& rank = ranks_[r];
        CHECK_CUDA(cudaStreamSynchronize(rank->stream));
        float ms = 0;
        CHECK_CUDA(cudaEventElapsedTime(&ms, rank->begin, rank->end));
        slowest = std::max(slowest, ms);
      }
      if (replay >= kWarmReplays) times.push_back(slowest * 1000 / kCallsPerGraph);
      hung = hostWords_->expired != 0;
    }
    for (cudaGraphExec_t graph : graphs) CHECK_CUDA(cudaGraphExecDestroy(graph));
    std::sort(times.begin(), times.end());
    std::printf("%-6s T=%-5ld H=%-6ld R=%d on %d%s asked %d%s threads %4d cluster %d blocks %5d  ", pattern.c_str(),
                tokens_, hidden_, options_.ranks, options_.gpus, options_.loopback ? " alone" : "", wish.packsPerThread,
                wish.loops ? " loop" : "", launch.threads, launch.cluster, launch.blocks);
    if (hung) {
      std::printf("HUNG\n");
      reset();
    } else {
      std::printf("%8.3f us (min %.3f)\n", static_cast<double>(times[times.size() / 2]), static_cast<double>(times[0]));
    }
    std::fflush(stdout);
  }

 private:
  // Makes rank r's GPU the current one.
  void use(size_t r) const { CHECK_CUDA(cudaSetDevice(static_cast<int>(r) % options_.gpus)); }
  void synchronize() const {
    for (int g = 0; g < options_.gpus; g++) {
      use(static_cast<size_t>(g));
      CHECK_CUDA(cudaDeviceSynchronize());
    }
  }
  void reset() {
    *hostWords_ = {};
    for (size_t r = 0; r < ranks_.size(); r++) {
      use(r);
      Rank& rank = *ranks_[r];
      CHECK_CUDA(cuda::arm(rank.slots->as<char>(), 3 * epochBytes_, rank.stream));
      CHECK_CUDA(cudaMemset(rank.state->as<void>(), 0, sizeof(cuda::DeviceState)));
      rank.world.rank = static_cast<int>(r);
      rank.world.ranks = options_.ranks;
      rank.world.epochBytes = epochBytes_;
      rank.world.state = rank.state->as<cuda::DeviceState>();
      rank.world.hostWords = hostWords_;
      rank.world.timeoutNanoseconds = 200'000'000;
      for (int p = 0; p < options_.ranks; p++) {
        // Looped back, what is pushed to rank 1 as source 0 arrives here as from source 1.
        rank.world.memory[p] = options_.loopback ? rank.slots->as<char>() + (p == 0 ? 0 : tokens_ * hidden_ * 2)
                                                 : ranks_[static_cast<size_t>(p)]->slots->as<char>();
      }
    }
    synchronize();
  }

  RowArgs args(const Rank& rank, const Buffers& b, const std::string& pattern) const {
    RowArgs a;
    a.input = b.input.as<void>();
    if (pattern == "plain") {
      a.rows = 1;
      a.cols = tokens_ * hidden_;
      a.reducedOut = b.normOut.as<void>();
      return a;
    }
    a.rows = tokens_;
    a.cols = hidden_;
    a.residual = b.residual.as<void>();
    a.weight = rank.weight->as<void>();
    a.residualOut = b.residualOut.as<void>();
    a.eps = 1e-5f;
    if (pattern == "norm") a.normOut = b.normOut.as<void>();
    if (pattern == "fp8" || pattern == "nvfp4") {
      a.quant = pattern == "fp8" ? QuantKind::kFp8 : QuantKind::kNvfp4;
      a.quantOut = b.quantOut.as<uint8_t>();
      a.scaleOut = b.scaleOut.as<uint8_t>();
      a.quantScale = rank.scale->as<float>();
    }
    return a;
  }

  const Options& options_;
  const int64_t tokens_;
  const int64_t hidden_;
  uint64_t epochBytes_ = 0;
  volatile int* gateHost_ = nullptr;
  const int* gateDevice_ = nullptr;
  cuda::HostWords* hostWords_ = nullptr;
  int gates_ = 0;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

cuda::ShapeWish parseWish(const std::string& text) {
  cuda::ShapeWish wish;
  int loops = 0;
  std::sscanf(text.c_str(), "%d,%d,%d,%d,%d", &wish.packsPerThread, &wish.threads, &wish.cluster, &wish.blocks, &loops);
  wish.loops = loops != 0;
  return wish;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times the CUDA kernels for launch shapes.");
  app.add_option("--gpus", options.gpus, "GPUs that the ranks are dealt out to")->check(CLI::Range(1, cuda::kMaxRanks));
  app.add_option("--ranks", options.ranks, "ranks")->check(CLI::Range(1, cuda::kMaxRanks));
  app.add_flag("--loopback", options.loopback, "one rank, its peer looped back (2 ranks, ONESHOT, norm patterns)");
  app.add_option("--sets", options.sets, "sets of buffers that calls alternate between")->check(CLI::Range(1, 16));
  app.add_flag("--no-pdl", options.noPdl, "without programmatic dependent launch");
  app.add_flag("--same-domain", options.sameDomain, "in the memory synchronization domain of other kernels");
  app.add_option("--tokens", options.tokens)->delimiter(',');
  app.add_option("--hidden", options.hidden)->delimiter(',');
  app.add_option("--pattern", options.patterns, "plain, norm, fp8, nvfp4")->delimiter(',');
  app.add_option("--protocol", options.protocol, "oneshot, twoshot");
  app.add_option("--shape", options.wishes,
                 "packs per thread, threads, blocks per cluster, blocks, 1 for a loop; 0: the planner's; several");
  CLI11_PARSE(app, argc, argv);
  // Ranks are streams of one process; they must not share a hardware queue.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  for (int g = 0; g < options.gpus; g++) {
    CHECK_CUDA(cudaSetDevice(g));
    for (int other = 0; other < options.gpus; other++) {
      if (other != g) CHECK_CUDA(cudaDeviceEnablePeerAccess(other, 0));
    }
  }
  for (const int64_t hidden : options.hidden) {
    for (const int64_t tokens : options.tokens) {
      Bench bench(options, tokens, hidden);
      for (const std::string& pattern : options.patterns) {
        for (const std::string& wish : options.wishes) bench.run(pattern, parseWish(wish));
      }
    }
  }
  return 0;
}
