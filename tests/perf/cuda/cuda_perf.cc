#include "tests/perf/cuda/cuda_perf.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <mutex>

#include "tests/perf/check.h"
#include "tests/perf/cuda/device.h"
#include "tests/perf/cuda/kernel_gate.h"
#include "tests/perf/cuda/nccl.h"
#include "tests/perf/variants.h"

namespace fccl::perf {
namespace {

// A number in memory that the host writes and kernels of all ranks of this process read.
class Gate {
 public:
  static Gate& ofProcess() {
    static Gate gate;
    return gate;
  }
  // On the current device: what follows in the stream waits for open(number).
  void hold(int number, cudaStream_t stream) const {
    void* mapped = nullptr;
    cudaOk(cudaHostGetDevicePointer(&mapped, word_, 0), "cudaHostGetDevicePointer");
    cudaOk(gate(static_cast<const int*>(mapped), number, stream), "gate");
  }
  // Release: for kernels that poll the number; nothing else is handed over with it.
  void open(int number) const { std::atomic_ref(*word_).store(number, std::memory_order_release); }

 private:
  Gate() {
    void* word = nullptr;
    cudaOk(cudaHostAlloc(&word, sizeof(int), cudaHostAllocMapped | cudaHostAllocPortable), "cudaHostAlloc");
    word_ = static_cast<int*>(word);
    *word_ = 0;
  }
  int* word_ = nullptr;  // given back with the process
};

// One set of device buffers, with the host's copies that are checked. With windows, collective.
struct DeviceSet {
  std::unique_ptr<Buffers> host;
  std::unique_ptr<DeviceWindow> window;  // of input and output
  DeviceCopy input, output, residual, weight, residualOut, normOut, quantOut, scaleOut, fp8Scale, nvfp4Scale;

  DeviceSet(const Case& c, fcclComm_t comm)
      : host(std::make_unique<Buffers>(c, false, MemoryKind::kPlain, nullptr, 0)),
        window(c.windows ? std::make_unique<DeviceWindow>(comm, 2 * pieceBytes(c)) : nullptr),
        input(c.windows ? DeviceCopy(window->get(), c.bytes()) : DeviceCopy(c.bytes())),
        output(c.windows ? DeviceCopy(window->get() + pieceBytes(c), c.bytes()) : DeviceCopy(c.bytes())),
        residual(host->residual != nullptr ? c.bytes() : 0),
        weight(host->weight != nullptr ? static_cast<size_t>(c.hidden) * bytesOf(c.dtype) : 0),
        residualOut(host->residualOut != nullptr ? c.bytes() : 0),
        normOut(host->normOut != nullptr ? c.bytes() : 0),
        quantOut(host->quantOut != nullptr ? c.count() : 0),
        scaleOut(host->scaleOut != nullptr ? host->scaleBytes : 0),
        fp8Scale(sizeof(float)),
        nvfp4Scale(sizeof(float)) {
    residual.upload(host->residual);
    weight.upload(host->weight);
    fp8Scale.upload(&host->fp8DequantScale);
    nvfp4Scale.upload(&host->nvfp4GlobalScale);
  }

  static size_t pieceBytes(const Case& c) { return (c.bytes() + 4095) / 4096 * 4096; }

  fcclFusedArgs_t args(const Case& c, const void* from) const {
    fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
    const PatternTraits traits = traitsOf(c.pattern);
    args.pattern = c.pattern;
    args.dtype = c.dtype;
    args.tokens = c.tokens;
    args.hidden = c.hidden;
    args.input = from;
    args.residual = residual.get();
    args.weight = weight.get();
    args.residualOut = residualOut.get();
    args.normOut = normOut.get();
    if (traits.fp8 || traits.nvfp4) args.quantOut = quantOut.get();
    if (traits.nvfp4) args.scaleOut = scaleOut.get();
    if (traits.fp8) args.fp8DequantScale = static_cast<const float*>(fp8Scale.get());
    if (traits.nvfp4) args.nvfp4GlobalScale = static_cast<const float*>(nvfp4Scale.get());
    args.strategy = c.strategy;
    return args;
  }
  void downloadOutputs() const {
    output.download(host->output);
    residualOut.download(host->residualOut);
    normOut.download(host->normOut);
    quantOut.download(host->quantOut);
    scaleOut.download(host->scaleOut);
  }
};

// For countWrong(): a variant whose host buffers are filled from the GPU.
class Downloaded final : public Variant {
 public:
  Downloaded(const Case& c, int rank, std::unique_ptr<Buffers> buffers)
      : Variant("fccl", c, false, rank, std::move(buffers)) {}
  void run() override {}
};

class Communicator {
 public:
  Communicator() = default;
  Communicator(Communicator&&) = delete;
  ~Communicator() {
    if (comm_ != nullptr) fcclCommDestroy(comm_);
  }
  fcclComm_t* slot() { return &comm_; }
  fcclComm_t get() const { return comm_; }

 private:
  fcclComm_t comm_ = nullptr;
};

class Perf final : public CudaPerf {
 public:
  Perf(Ranks& ranks, const CudaOptions& options) : ranks_(ranks), options_(options) {
    int devices = 0;
    cudaOk(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    if (devices == 0) throw std::runtime_error("--device cuda: there is no GPU");
    devices_ = std::min(devices, ranks.count());
    cudaOk(cudaSetDevice(ranks.rank() % devices), "cudaSetDevice");
    cudaOk(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    cudaOk(cudaEventCreate(&begin_), "cudaEventCreate");
    cudaOk(cudaEventCreate(&end_), "cudaEventCreate");
    warmUp();
    fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
    config.deviceType = fcclDeviceCuda;
    config.allowSharedDevice = ranks.count() > devices ? 1 : 0;
    if (options.strategy != fcclStrategyAuto) config.strategy = options.strategy;
    *group_.slot() = ranks.createCommunicator(config);
    // A group of one: its fused call is the epilogue alone.
    fcclUniqueId id;
    fcclConfig_t own = FCCL_CONFIG_INITIALIZER;
    own.deviceType = fcclDeviceCuda;
    require(fcclGetUniqueId(&id), "fcclGetUniqueId", nullptr);
    require(fcclCommInit(alone_.slot(), 1, id, 0, &own), "fcclCommInit", nullptr);
    if (options.compareNccl) {
      std::string why;
      nccl_ = Nccl::connect(ranks, &why);
      if (nccl_ == nullptr && ranks.rank() == 0) fmt::print("# no comparison with NCCL: {}\n", why);
    }
  }
  ~Perf() override {
    nccl_.reset();
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }

  std::string hardware() const override {
    cudaDeviceProp properties{};
    int driver = 0;
    cudaOk(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    cudaOk(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    return fmt::format("{} x {}, CUDA driver {}.{}", devices_, properties.name, driver / 1000, driver % 1000 / 10);
  }
  fcclComm_t communicator() const override { return group_.get(); }
  std::string nccl() const override { return nccl_ == nullptr ? "" : nccl_->version(); }

  Row measure(const Case& c, const MeasureOptions& options) override {
    std::vector<std::unique_ptr<DeviceSet>> sets;
    const Producer producer(c.dtype, c.op, ranks_.rank());
    for (int s = 0; s < options_.sets; s++) {
      sets.push_back(std::make_unique<DeviceSet>(c, group_.get()));
      producer.produce(sets.back()->host->input, c.count(), static_cast<uint64_t>(s));
      sets.back()->input.upload(sets.back()->host->input);
    }
    Row row;
    row.c = c;
    row.ping.beforeNs = row.ping.afterNs = std::nan("");

    const auto fccl = [&](size_t set) { callFccl(c, *sets[set], group_.get(), sets[set]->input.get()); };
    row.series.push_back(timed("fccl", fccl, options));
    if (options.check) {
      for (size_t s = 0; s < sets.size(); s++) {
        sets[s]->downloadOutputs();
        const Downloaded result(c, ranks_.rank(), std::move(sets[s]->host));
        const long long wrong = countWrong(c, ranks_.count(), s, result);
        row.series.front().wrong =
            std::max(row.series.front().wrong, 0LL) + std::llround(ranks_.sum(static_cast<double>(wrong)));
      }
    }
    if (options_.compareUnfused && c.fused()) {
      row.series.push_back(timed(
          "unfused",
          [&](size_t set) {
            Case plain = c;
            plain.pattern = fcclPatternAllReduce;
            callFccl(plain, *sets[set], group_.get(), sets[set]->input.get());
            callFccl(c, *sets[set], alone_.get(), sets[set]->output.get());
          },
          options));
    }
    if (nccl_ != nullptr) addNccl(c, sets, options, row);
    return row;
  }

 private:
  void callFccl(const Case& c, const DeviceSet& set, fcclComm_t comm, const void* input) const {
    if (!c.fused()) {
      require(fcclAllReduce(input, set.output.get(), c.count(), c.dtype, c.op, comm, stream_), "fcclAllReduce", comm);
      return;
    }
    fcclFusedArgs_t args = set.args(c, input);
    if (comm == alone_.get()) {
      args.strategy = fcclStrategyAuto;
    } else if (c.sharded) {
      shardResidual(c, ranks_.count(), ranks_.rank(), args);
    }
    require(fcclAllReduceFused(&args, comm, stream_), "fcclAllReduceFused", comm);
  }

  void addNccl(const Case& c, const std::vector<std::unique_ptr<DeviceSet>>& sets, const MeasureOptions& options,
               Row& row) {
    row.series.push_back(timed(
        "nccl",
        [&](size_t set) {
          nccl_->allReduce(sets[set]->input.get(), sets[set]->output.get(), c.count(), c.dtype, stream_);
          if (c.fused()) callFccl(c, *sets[set], alone_.get(), sets[set]->output.get());
        },
        options));
    if (!nccl_->hasWindows()) return;
    // As much as a whole number of large pages, input and output of each set.
    std::vector<std::unique_ptr<Nccl::Window>> windows;
    for (size_t i = 0; i < 2 * sets.size(); i++) windows.push_back(std::make_unique<Nccl::Window>(*nccl_, c.bytes()));
    for (size_t s = 0; s < sets.size(); s++) {
      cudaOk(cudaMemcpy(windows[2 * s]->get(), sets[s]->input.get(), c.bytes(), cudaMemcpyDeviceToDevice),
             "cudaMemcpy");
    }
    row.series.push_back(timed(
        "nccl-symmetric",
        [&](size_t set) {
          void* sum = windows[2 * set + 1]->get();
          nccl_->allReduce(windows[2 * set]->get(), sum, c.count(), c.dtype, stream_);
          if (c.fused()) callFccl(c, *sets[set], alone_.get(), sum);
        },
        options));
  }

  Series timed(const char* name, const std::function<void(size_t)>& call, const MeasureOptions& options) {
    // Taking memory and giving it back may wait for the GPU. Where ranks share one, that would be for a call of those
    // who are further, which waits for this rank.
    ranks_.barrier();
    for (size_t s = 0; s < static_cast<size_t>(options_.sets); s++) call(s);
    cudaOk(cudaStreamSynchronize(stream_), "a call");
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    cudaOk(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    for (int i = 0; i < options_.calls; i++) call(static_cast<size_t>(i % options_.sets));
    cudaOk(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    cudaOk(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
    cudaOk(cudaGraphDestroy(graph), "cudaGraphDestroy");
    cudaOk(cudaGraphUpload(executable, stream_), "cudaGraphUpload");
    cudaOk(cudaStreamSynchronize(stream_), "cudaGraphUpload");
    // As above: a graph has memory too, and a replay waits at the gate for all ranks.
    ranks_.barrier();

    Series series;
    series.variant = name;
    series.iters = options_.calls;
    for (int round = -options.warmup; round < options.rounds; round++) {
      const double time = replay(executable);
      if (round >= 0) series.roundUs.push_back(time);
    }
    series.callUs = series.roundUs;
    cudaOk(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
    return series;
  }

  // The first kernel of a program and that of a stream may wait for the GPU, too.
  void warmUp() {
    Gate::ofProcess().hold(0, stream_);
    cudaOk(cudaStreamSynchronize(stream_), "the first kernel");
  }

  // Microseconds per call of the slowest rank.
  double replay(cudaGraphExec_t graph) {
    gates_++;
    const Gate& gate = Gate::ofProcess();
    gate.hold(gates_, stream_);
    cudaOk(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    cudaOk(cudaGraphLaunch(graph, stream_), "cudaGraphLaunch");
    cudaOk(cudaEventRecord(end_, stream_), "cudaEventRecord");
    ranks_.barrier();
    // Threads share the gate; processes have one each, and are as far apart as the barrier lets them.
    const bool threads = std::string_view(ranks_.kind()) == "threads";
    if (!threads || ranks_.rank() == 0) gate.open(gates_);
    cudaOk(cudaStreamSynchronize(stream_), "a replay");
    float milliseconds = 0;
    cudaOk(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    double time = static_cast<double>(milliseconds) * 1000 / options_.calls;
    ranks_.maximum(std::span<double>(&time, 1));
    return time;
  }

  Ranks& ranks_;
  const CudaOptions options_;
  int devices_ = 0;
  int gates_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  Communicator group_;
  Communicator alone_;
  std::unique_ptr<Nccl> nccl_;
};

}  // namespace

std::unique_ptr<CudaPerf> makeCudaPerf(Ranks& ranks, const CudaOptions& options) {
  // Ranks that are threads must not share a hardware queue. Read when CUDA starts.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  return std::make_unique<Perf>(ranks, options);
}

}  // namespace fccl::perf
