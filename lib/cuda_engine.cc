// CUDA: staging areas in GPU memory that all ranks have mapped, control blocks in host memory, and two words of pinned
// memory through which the host and this rank's kernels tell each other to give up. A call is a kernel on the caller's
// stream.
#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>
#include <new>
#include <thread>

#include "base/check.h"
#include "base/log.h"
#include "kernels/cuda/cuda_kernels.h"
#include "lib/cuda_bench.h"
#include "lib/cuda_nccl.h"
#include "lib/cuda_reach.h"
#include "lib/engine.h"
#include "lib/testing.h"
#include "transport/cuda_driver.h"
#include "transport/machine.h"
#include "tuner/strategies.h"

namespace fccl {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kPage = 4096;

// Pinned memory of one rank: the words, and the data of the test that a new communicator is put to.
struct Pinned {
  cuda::HostWords words;
  static constexpr size_t kTestElements = 4 * 256;
  alignas(16) float input[kTestElements];
  alignas(16) float output[kTestElements];
};

// What kernels of this rank use, so that it must outlive them.
struct DeviceSide {
  int device = 0;
  std::unique_ptr<SymmetricMemory> memory;
  Pinned* pinned = nullptr;
  std::unique_ptr<CudaNccl> nccl;  // where there is one

  DeviceSide() = default;
  DeviceSide(const DeviceSide&) = delete;
  DeviceSide& operator=(const DeviceSide&) = delete;
  ~DeviceSide() {
    const OutsideCapture outside;
    const CurrentDevice current(device);
    nccl.reset();
    memory.reset();
    if (pinned != nullptr) cudaFreeHost(pinned);
  }
};

// Between a destructor and the thread that waits for the device.
struct Leaving {
  std::mutex mutex;
  bool gone = false;  // the device side is being given back
};

class CudaEngine final : public Engine {
 public:
  CudaEngine(host::World& world, const Options& options, int ranksOnDevice)
      : world_(world), options_(options), side_(std::make_shared<DeviceSide>()), ranksOnDevice_(ranksOnDevice) {
    side_->device = options.cudaDevice;
  }

  // Kernels that are still under way use what is given back here. They are waited for on a thread of their own: where
  // the device does not come to rest, since other work on it waits for something that the caller has yet to do, that
  // thread takes over what they use, and the caller goes on.
  ~CudaEngine() override {
    if (side_->pinned == nullptr) return;
    Pinned* const pinned = side_->pinned;
    CudaNccl* const nccl = side_->nccl.get();
    try {
      auto leaving = std::make_shared<Leaving>();
      std::promise<void> done;
      std::future<void> rest = done.get_future();
      std::thread([side = std::move(side_), leaving, done = std::move(done)]() mutable {
        {
          const OutsideCapture outside;
          const CurrentDevice current(side->device);
          // Refused while any stream of the GPU is captured; then the kernels may still run, so ask again.
          while (cudaDeviceSynchronize() == cudaErrorStreamCaptureUnsupported) {
            (void)cudaGetLastError();
            std::this_thread::sleep_for(5ms);
          }
        }
        {
          const std::lock_guard lock(leaving->mutex);
          leaving->gone = true;
        }
        side.reset();
        done.set_value();
      }).detach();
      if (rest.wait_for(kPatience) == std::future_status::ready) return;
      {
        const std::lock_guard lock(leaving->mutex);
        if (!leaving->gone) stop(pinned, nccl);
      }
      rest.wait_for(kPatience);
    } catch (const std::exception& error) {
      FCCL_WARN("GPU memory is given back without waiting for kernels: {}", error.what());
    }
  }

  Status share(Bootstrap& bootstrap) override {
    const OutsideCapture outside;
    const CurrentDevice current(side_->device);
    HostMemoryOptions hostOptions;
    hostOptions.provider = options_.sharedMemory;
    hostOptions.timeout = options_.initTimeout();
    FCCL_TRY_ASSIGN(control_, createHostMemory(bootstrap, host::controlBytes(), hostOptions));
    for (int r = 0; r < world_.ranks; r++) world_.memory.push_back(control_->peer(r));
    world_.alive = [](const void* memory, int r) { return static_cast<const SymmetricMemory*>(memory)->alive(r); };
    world_.aliveContext = control_.get();
    host::prepareControl(world_, testing::testOptions().firstSequence);

    FCCL_TRY(bootstrap.agree(prepareDevice()));
    cudaWorld_.rank = world_.rank;
    cudaWorld_.ranks = world_.ranks;
    cudaWorld_.epochBytes = static_cast<uint64_t>(options_.cudaWorkspaceBytes);
    cudaWorld_.hostWords = &side_->pinned->words;
    CudaMemoryOptions memoryOptions = cudaMemoryOptions();
    memoryOptions.prepare = [this](char* data) { return arm(data); };
    FCCL_TRY_ASSIGN(side_->memory, createCudaMemory(bootstrap, armedBytes() + zeroedBytes(), memoryOptions));
    for (int r = 0; r < world_.ranks; r++) cudaWorld_.memory[r] = side_->memory->peer(r);
    cudaWorld_.state = reinterpret_cast<cuda::DeviceState*>(side_->memory->peer(world_.rank) + armedBytes() + kPage);
    return {};
  }

  Status look(Bootstrap& bootstrap, Facts* facts) override {
    const OutsideCapture outside;
    const CurrentDevice current(side_->device);
    const Status tried = tryOutAll();
    if (!options_.wantsNccl()) return tried;
    FCCL_TRY(bootstrap.agree(tried));
    facts->noNccl = openNccl(bootstrap).message();
    if (facts->noNccl.empty()) {
      facts->noNcclWindow = side_->nccl->windowReason();
    } else {
      FCCL_WARN("No NCCL beside this communicator: {}", facts->noNccl);
    }
    return {};
  }

  Status prepare(const CheckedCall& call, Plan* plan) override {
    const OutsideCapture outside;
    const CurrentDevice current(side_->device);
    if (isNccl(plan->strategy)) return side_->nccl->prepare(facts_, call, plan);
    const RowArgs& rows = call.call.rows;
    const cuda::Protocol protocol = protocolOf(*plan);
    if (usesWindows(*plan)) {
      cuda::Shape shape = cuda::shapeOf(protocol, call.call.dtype, rows);
      shape.aligned = shape.aligned && plan->windowsAligned;
      FCCL_CUDA(cuda::planWindows(facts_, world_.ranks, shape, {}, &plan->launch));
      if (plan->launch.kernel != nullptr) return {};
      // Rows that it has no kernel for: as in findLaunch().
      plan->protocol = host::Protocol::kOneshot;
    }
    FCCL_TRY(findLaunch(protocol, call.call.dtype, rows, &plan->launch));
    const int64_t all = call.norm() ? rows.rows : rows.cols;
    if (rows.inputPushed && plan->launch.rowsPerLaunch < all) {
      return doesNotFitPushed(call.tokens, call.hidden, call.call.dtype);
    }
    return {};
  }

  Status preparePush(int64_t tokens, int64_t hidden, fcclDataType_t dtype, fcclDevicePush_t* push) const override {
    const uint64_t most = cudaWorld_.epochBytes / static_cast<uint64_t>(world_.ranks);  // of one source
    const auto bytes = static_cast<uint64_t>(cuda::elementBytes(dtype));
    const auto rows = static_cast<uint64_t>(tokens);
    const auto cols = static_cast<uint64_t>(hidden);
    if (cols > most / bytes || rows > most / (cols * bytes)) return doesNotFitPushed(tokens, hidden, dtype);
    push->rank = world_.rank;
    push->ranks = world_.ranks;
    push->tokens = tokens;
    push->hidden = hidden;
    push->dtype = dtype;
    push->elementBytes = static_cast<uint32_t>(bytes);
    push->rowBytes = static_cast<uint32_t>(cols * bytes);
    push->epochBytes = static_cast<uint32_t>(cudaWorld_.epochBytes);
    push->epoch = &cudaWorld_.state->epochs[0];
    push->aborted = &cudaWorld_.state->aborted;
    // ONESHOT's slots: [epoch][source][row], and rows of whole packs have no gaps between them.
    const uint64_t mine = static_cast<uint64_t>(world_.rank) * rows * push->rowBytes;
    for (int r = 0; r < world_.ranks; r++) push->slots[r] = cudaWorld_.memory[r] + mine;
    return {};
  }

  // One launch, or several where the staging areas do not hold the call. No allocation, no other CUDA call.
  Status run(CheckedCall& call, const Plan& plan) override {
    const CurrentDevice current(side_->device);
    if (isNccl(plan.strategy)) return runNccl(call, plan);
    cuda::Windows windows;
    const bool used = usesWindows(plan);
    if (used) {
      const host::WindowDeltas& deltas = call.call.windows;
      std::copy_n(deltas.input, world_.ranks, windows.input);
      if (deltas.reducedOut != nullptr) std::copy_n(deltas.reducedOut, world_.ranks, windows.reducedOut);
      windows.nextBeginsEarly = plan.launch.nextBeginsEarly;
    }
    const RowArgs& rows = call.call.rows;
    const cudaError_t code =
        cuda::launch(plan.launch, call.call.dtype, cudaWorld_, rows, call.stream, used ? &windows : nullptr);
    if (code == cudaSuccess) return {};
    Status failed = cudaFailure(code, "cudaLaunchKernelExC", __FILE_NAME__, __LINE__);
    if ((call.norm() ? rows.rows : rows.rows * rows.cols) > plan.launch.rowsPerLaunch) cutShort(failed);
    return failed;
  }

  Result<std::unique_ptr<SymmetricMemory>> mapWindow(Bootstrap& bootstrap, void* buffer, size_t bytes) override {
    FCCL_TRY_ASSIGN(std::unique_ptr<SymmetricMemory> memory,
                    mapCudaWindow(bootstrap, buffer, bytes, cudaMemoryOptions()));
    if (side_->nccl != nullptr) {
      const CurrentDevice current(side_->device);
      side_->nccl->addWindow(bootstrap, buffer, bytes);
    }
    return memory;
  }

  void forgetWindow(const void* buffer) override {
    if (side_->nccl == nullptr) return;
    const CurrentDevice current(side_->device);
    side_->nccl->removeWindow(buffer);
  }

  Status inspect(const CheckedCall& call, bool* compare) override {
    FCCL_TRY_ASSIGN(const bool captured, isCaptured(call.stream));
    *compare = !captured;
    if (captured) FCCL_INFO("FCCL_CHECK compares no call that is being captured into a graph.");
    return checkReach(call, side_->device);
  }

  Result<bool> isCaptured(fcclStream_t stream) const override {
    const CurrentDevice current(side_->device);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    FCCL_CUDA(cudaStreamIsCapturing(stream, &status));
    return status != cudaStreamCaptureStatusNone;
  }

  Result<std::unique_ptr<Bench>> makeBench(const Facts&) override { return makeCudaBench(side_->device); }

  int device() const override { return side_->device; }

  host::Failure lateRank() const override {
    // Acquire: nothing else is read with it but what it says.
    const uint32_t expired = std::atomic_ref(side_->pinned->words.expired).load(std::memory_order_acquire);
    if (expired == 0) return {};
    return {host::FailureKind::kTimeout, static_cast<int>(expired) - 1};
  }

  Status enqueuedError() override {
    if (side_->nccl == nullptr) return {};
    const CurrentDevice current(side_->device);
    return side_->nccl->enqueuedError();
  }

  void stopWaits() override { stop(side_->pinned, side_->nccl.get()); }

  std::string describe() const override {
    return fmt::format("GPU {}, {}, 3 staging areas of {}{}", side_->device, side_->memory->kind(),
                       describeBytes(cudaWorld_.epochBytes),
                       side_->nccl != nullptr ? ", " + side_->nccl->describe() : "");
  }

 private:
  static constexpr auto kPatience = 400ms;

  static void stop(Pinned* pinned, CudaNccl* nccl) {
    // Release: whatever made the host give up comes before; kernels act on the word alone.
    std::atomic_ref(pinned->words.abort).store(1, std::memory_order_release);
    if (nccl != nullptr) nccl->stopWaits();
  }

  void cutShort(const Status& failed) {
    FCCL_WARN("{}", failed.message());
    world_.failure = {host::FailureKind::kCutShort, world_.rank};
  }

  Status runNccl(const CheckedCall& call, const Plan& plan) {
    bool begun = false;
    Status done = side_->nccl->run(call, plan, &begun);
    if (!done.ok() && begun) cutShort(done);
    return done;
  }

  // Collective. The failure, the same on all ranks, is why there is none.
  Status openNccl(Bootstrap& bootstrap) {
    if (ranksOnDevice_ > 1) {
      return failure(fcclInvalidUsage,
                     "NCCL refuses ranks that share a GPU, and here up to {} do; give each rank a GPU of its own.",
                     ranksOnDevice_);
    }
    const auto library = NcclLibrary::find(options_.ncclLibrary);
    std::unique_ptr<NcclCommunicator> communicator;
    if (options_.ncclComm != nullptr) {
      auto adopted = library.ok() ? NcclCommunicator::adopt(library.value(), options_.ncclComm) : library.status();
      FCCL_TRY(bootstrap.agree(adopted.status()));
      communicator = std::move(adopted.value());
    } else {
      FCCL_TRY_ASSIGN(communicator, NcclCommunicator::create(library, bootstrap));
    }
    FCCL_TRY_ASSIGN(side_->nccl,
                    CudaNccl::create(std::move(communicator), bootstrap,
                                     static_cast<size_t>(options_.cudaWorkspaceBytes), &side_->pinned->words));
    return {};
  }

  static cuda::Protocol protocolOf(const Plan& plan) {
    switch (plan.protocol) {
      case host::Protocol::kTwoshot:
      case host::Protocol::kWindowTwoshot: return cuda::Protocol::kTwoshot;
      case host::Protocol::kLowPrecision: return cuda::Protocol::kLowPrecision;
      default: return cuda::Protocol::kOneshot;
    }
  }

  static bool usesWindows(const Plan& plan) {
    return plan.protocol == host::Protocol::kWindowOneshot || plan.protocol == host::Protocol::kWindowTwoshot;
  }

  // The symmetric memory: epochs, then a page of cuda::WindowFlags and one of cuda::DeviceState.
  uint64_t armedBytes() const { return cuda::kEpochs * cudaWorld_.epochBytes; }
  static constexpr uint64_t zeroedBytes() { return 2 * kPage; }
  static_assert(sizeof(cuda::WindowFlags) <= kPage && sizeof(cuda::DeviceState) <= kPage);

  CudaMemoryOptions cudaMemoryOptions() const {
    CudaMemoryOptions result;
    result.device = side_->device;
    result.way = options_.cudaMemory;
    result.timeout = options_.initTimeout();
    result.ranks = control_.get();
    return result;
  }

  Status prepareDevice() {
    if (world_.ranks > cuda::kMaxRanks) {
      return failure(fcclInvalidArgument, "nranks is {}; a CUDA communicator has at most {} ranks.", world_.ranks,
                     cuda::kMaxRanks);
    }
    FCCL_CUDA(cudaFree(nullptr));  // starts CUDA on this GPU where nothing has yet
    if (const cudaError_t code = cuda::load(ranksOnDevice_ > 1); code != cudaSuccess) {
      return failure(fcclUnhandledCudaError,
                     "The kernels cannot be loaded on GPU {}; is this FCCL built for it (FCCL_CUDA_ARCHS)? {}",
                     side_->device, cudaFailure(code, "cudaFuncGetAttributes", __FILE_NAME__, __LINE__).message());
    }
    FCCL_CUDA(cuda::readDeviceFacts(side_->device, &facts_));
    facts_.ranksOnDevice = ranksOnDevice_;
    facts_.programmatic = options_.programmaticLaunch;
    void* pinned = nullptr;
    FCCL_CUDA(cudaHostAlloc(&pinned, sizeof(Pinned), cudaHostAllocMapped | cudaHostAllocPortable));
    side_->pinned = new (pinned) Pinned{};
    return {};
  }

  Status findLaunch(cuda::Protocol protocol, fcclDataType_t dtype, const RowArgs& rows, cuda::Launch* launch) const {
    const char* reason = nullptr;
    FCCL_CUDA(cuda::plan(facts_, cudaWorld_, cuda::shapeOf(protocol, dtype, rows), {}, launch, &reason));
    if (launch->kernel == nullptr && protocol != cuda::Protocol::kOneshot && !rows.residualSharded) {
      // Rows that it has no kernel for: the same bits from ONESHOT (LOWPRECISION: better ones), on every rank alike.
      return findLaunch(cuda::Protocol::kOneshot, dtype, rows, launch);
    }
    if (launch->kernel != nullptr) return {};
    return failure(fcclInvalidArgument,
                   "a call of {} x {} {} cannot be carried out on CUDA: {}; staging areas have {} bytes each, which "
                   "cudaWorkspaceBytes (FCCL_CUDA_WORKSPACE_BYTES) sets.",
                   rows.rows, rows.cols, host::dtypeName(dtype), reason, cudaWorld_.epochBytes);
  }

  Status doesNotFitPushed(int64_t tokens, int64_t hidden, fcclDataType_t dtype) const {
    return failure(fcclInvalidArgument,
                   "tokens {} x hidden {} of {} cannot be pushed: {} ranks' rows must fit a staging area, which has {} "
                   "bytes; make it larger (cudaWorkspaceBytes, FCCL_CUDA_WORKSPACE_BYTES), or push fewer tokens at a "
                   "time.",
                   tokens, hidden, host::dtypeName(dtype), world_.ranks, cudaWorld_.epochBytes);
  }

  // Before any peer has the memory.
  Status arm(char* data) const {
    FCCL_TRY_ASSIGN(const PrivateStream stream, PrivateStream::make());
    FCCL_CUDA(cuda::arm(data, armedBytes(), stream.get()));
    FCCL_CUDA(cudaMemsetAsync(data + armedBytes(), 0, zeroedBytes(), stream.get()));
    FCCL_CUDA(cudaStreamSynchronize(stream.get()));
    return {};
  }

  // Two real calls: what the driver says of access between GPUs is not always so.
  Status tryOutAll() {
    cudaWorld_.timeoutNanoseconds = static_cast<uint64_t>(std::chrono::nanoseconds(options_.initTimeout()).count());
    Status tried = tryOut(cuda::Protocol::kOneshot);
    if (tried.ok()) tried = tryOut(cuda::Protocol::kTwoshot);
    cudaWorld_.timeoutNanoseconds = static_cast<uint64_t>(options_.timeoutMs) * 1'000'000;
    if (!tried.ok()) {
      uint32_t running = host::kRunning;
      // Release: as in Communicator::fail(). Peers that wait for this rank see it and end.
      world_.control(world_.rank)
          .ended.value.compare_exchange_strong(running, host::kGaveUp, std::memory_order_release,
                                               std::memory_order_relaxed);
    }
    return tried;
  }

  static float testValue(int rank, size_t i) { return static_cast<float>((rank + 1) * static_cast<int>(i % 97 + 1)); }

  Status tryOut(cuda::Protocol protocol) {
    Pinned& pinned = *side_->pinned;
    for (size_t i = 0; i < Pinned::kTestElements; i++) {
      pinned.input[i] = testValue(world_.rank, i);
      pinned.output[i] = 0;
    }
    RowArgs rows;
    rows.input = pinned.input;
    rows.reducedOut = pinned.output;
    rows.rows = 1;
    rows.cols = Pinned::kTestElements;
    FCCL_TRY_ASSIGN(const PrivateStream stream, PrivateStream::make());
    cuda::Launch launch;
    FCCL_TRY(findLaunch(protocol, fcclFloat32, rows, &launch));
    FCCL_CUDA(cuda::launch(launch, fcclFloat32, cudaWorld_, rows, stream.get()));
    FCCL_TRY(awaitTest(stream.get()));
    for (size_t i = 0; i < Pinned::kTestElements; i++) {
      float wanted = 0;
      for (int r = 0; r < world_.ranks; r++) wanted += testValue(r, i);
      if (pinned.output[i] == wanted) continue;
      return failure(fcclSystemError,
                     "what GPUs write into each other's memory does not arrive: a test sum is {} in place of {}. The "
                     "driver reports access between them that does not work (IOMMU, ACS, or a virtual machine without "
                     "it); use other GPUs, or a HOST communicator.",
                     pinned.output[i], wanted);
    }
    return {};
  }

  Status awaitTest(cudaStream_t stream) {
    auto nextLook = std::chrono::steady_clock::now();
    for (;;) {
      const cudaError_t code = cudaStreamQuery(stream);
      if (code == cudaSuccess) break;
      if (code != cudaErrorNotReady) FCCL_CUDA(code);
      (void)cudaGetLastError();
      std::this_thread::sleep_for(20us);
      if (std::chrono::steady_clock::now() < nextLook) continue;
      nextLook += 50ms;
      for (int r = 0; r < world_.ranks; r++) {
        // Acquire: as in Communicator::endedRank().
        const bool ended = world_.control(r).ended.value.load(std::memory_order_acquire) != host::kRunning;
        if (r == world_.rank || (!ended && control_->alive(r))) continue;
        stopWaits();
        FCCL_CUDA(cudaStreamSynchronize(stream));
        return failure(fcclRemoteError, "rank {} has given up while the new communicator was tested.", r);
      }
    }
    const host::Failure late = lateRank();
    if (late.kind == host::FailureKind::kNone) return {};
    return failure(fcclRemoteError, "nothing came from rank {} while the new communicator was tested.", late.rank);
  }

  host::World& world_;
  const Options& options_;
  std::unique_ptr<SymmetricMemory> control_;
  std::shared_ptr<DeviceSide> side_;
  cuda::CudaWorld cudaWorld_{};
  cuda::DeviceFacts facts_;
  const int ranksOnDevice_;
};

}  // namespace

std::unique_ptr<Engine> makeCudaEngine(host::World& world, const Options& options, int ranksOnDevice) {
  return std::make_unique<CudaEngine>(world, options, ranksOnDevice);
}

}  // namespace fccl
