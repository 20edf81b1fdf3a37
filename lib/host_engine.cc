// HOST: the whole of the symmetric memory is host memory, and a call runs on the thread that makes it.
#include "base/check.h"
#include "lib/engine.h"
#include "lib/float_mode.h"
#include "lib/host_bench.h"
#include "lib/testing.h"
#include "transport/path_check.h"

namespace fccl {
namespace {

class HostEngine final : public Engine {
 public:
  HostEngine(host::World& world, const Options& options) : world_(world), options_(options) {}

  Status share(Bootstrap& bootstrap) override {
    world_.layout = host::makeLayout(world_.ranks, static_cast<size_t>(options_.slotBytes));
    FCCL_TRY_ASSIGN(memory_, createHostMemory(bootstrap, world_.layout.totalBytes(), memoryOptions()));
    FCCL_TRY(checkPaths(bootstrap, *memory_));
    for (int r = 0; r < world_.ranks; r++) world_.memory.push_back(memory_->peer(r));
    world_.alive = [](const void* memory, int r) { return static_cast<const SymmetricMemory*>(memory)->alive(r); };
    world_.aliveContext = memory_.get();
    host::prepareMemory(world_, testing::testOptions().firstSequence);
    return {};
  }

  Status look(Bootstrap&, Facts* facts) override {
    facts->slotBytes = world_.layout.slotBytes;
    facts->lamportSlotBytes = world_.layout.lamportSlotBytes;
    coreEach_ = world_.ranks <= facts->cores;
    flagNanoseconds_ = flagNanoseconds();
    facts->flagNanoseconds = flagNanoseconds_;
    if (world_.failure.kind == host::FailureKind::kNone) return {};
    return failure(fcclRemoteError, "rank {} stopped answering while flags were timed.", world_.failure.rank);
  }

  Status prepare(const CheckedCall&, Plan*) override { return {}; }

  Status run(CheckedCall& call, const Plan& plan) override {
    const DefaultFloatMode floatMode;
    call.call.shape = plan.shape;
    plan.kernel(world_, call.call);
    return {};
  }

  Result<std::unique_ptr<SymmetricMemory>> mapWindow(Bootstrap& bootstrap, void* buffer, size_t bytes) override {
    return mapHostWindow(bootstrap, buffer, bytes, memoryOptions());
  }

  Status preparePush(int64_t, int64_t, fcclDataType_t, fcclDevicePush_t*) const override {
    return failure(fcclInvalidArgument,
                   "comm is on HOST, where there are no kernels that could push; make a CUDA communicator for that "
                   "(deviceType, FCCL_DEVICE).");
  }

  Status inspect(const CheckedCall&, bool* compare) override {
    *compare = true;
    return {};
  }

  Result<std::unique_ptr<Bench>> makeBench(const Facts& facts) override { return makeHostBench(facts.cacheBytes); }

  // More ranks than cores would measure the scheduler.
  double flagNanoseconds() override { return coreEach_ ? host::measureFlagNanoseconds(world_) : 0; }

  int device() const override { return -1; }
  host::Failure lateRank() const override { return {}; }
  void stopWaits() override {}

  std::string describe() const override {
    return fmt::format("{}, {} bytes per rank, flag {:.0f} ns, {}", memory_->kind(), memory_->bytes(), flagNanoseconds_,
                       host::simdName(options_.simd));
  }

 private:
  HostMemoryOptions memoryOptions() const {
    HostMemoryOptions result;
    result.provider = options_.sharedMemory;
    result.timeout = options_.initTimeout();
    return result;
  }

  host::World& world_;
  const Options& options_;
  std::unique_ptr<SymmetricMemory> memory_;
  bool coreEach_ = false;
  double flagNanoseconds_ = 0;  // when the communicator was made
};

}  // namespace

std::unique_ptr<Engine> makeHostEngine(host::World& world, const Options& options) {
  return std::make_unique<HostEngine>(world, options);
}

}  // namespace fccl
