// What a communicator does differently on HOST and on CUDA devices: where its ranks' common memory is, and how a call
// is carried out there. What is alike stays with the communicator: settings, plans, windows, and who has failed, which
// ranks tell each other through the control blocks in host memory on both kinds of device.
#pragma once

#include <memory>

#include "base/status.h"
#include "fccl_device.h"
#include "kernels/host/world.h"
#include "lib/bench.h"
#include "lib/config.h"
#include "lib/validate.h"
#include "transport/bootstrap.h"
#include "transport/symmetric_memory.h"
#include "tuner/registry.h"

namespace fccl {

class Engine {
 public:
  virtual ~Engine() = default;

  // The steps of creation, collective. share() fills world.memory and prepares all memory; the caller passes a barrier
  // afterwards. look() completes the facts; its status may be this rank's own, the caller lets all ranks agree.
  virtual Status share(Bootstrap& bootstrap) = 0;
  virtual Status look(Bootstrap& bootstrap, Facts* facts) = 0;

  // Completes the plan of a shape that has not been called before.
  virtual Status prepare(const CheckedCall& call, Plan* plan) = 0;

  // Carries one call out, or enqueues it. A wait that ended early, and an error that leaves the call half enqueued, has
  // set world.failure.
  virtual Status run(CheckedCall& call, const Plan& plan) = 0;

  // Collective: see mapHostWindow and mapCudaWindow.
  virtual Result<std::unique_ptr<SymmetricMemory>> mapWindow(Bootstrap& bootstrap, void* buffer, size_t bytes) = 0;
  // Before what mapWindow() has given goes.
  virtual void forgetWindow(const void* /*buffer*/) {}

  // As fcclDevicePushInit; the shape is right by itself.
  virtual Status preparePush(int64_t tokens, int64_t hidden, fcclDataType_t dtype, fcclDevicePush_t* push) const = 0;

  // FCCL_CHECK: fcclInvalidArgument for a buffer that the device cannot reach. False in `compare`: this call cannot be
  // compared with those of other ranks.
  virtual Status inspect(const CheckedCall& call, bool* compare) = 0;

  // Whether what is enqueued on it goes into a graph. Never on HOST.
  virtual Result<bool> isCaptured(fcclStream_t /*stream*/) const { return false; }

  // Where the tuner makes its calls, after all that was enqueued before.
  virtual Result<std::unique_ptr<Bench>> makeBench(const Facts& facts) = 0;

  // HOST: the one-way time of a flag between ranks as it is now; collective, and the same on all. 0 where it says
  // nothing. world.failure: as after a call.
  virtual double flagNanoseconds() { return 0; }

  // -1 on HOST.
  virtual int device() const = 0;
  // Calls are enqueued: somebody has to look after them while nobody is inside a call.
  bool asynchronous() const { return device() >= 0; }
  // Whom an enqueued call has awaited in vain past the time limit, if one has.
  virtual host::Failure lateRank() const = 0;
  // What else has become of enqueued calls. Asks NCCL, where there is one; for slow paths, from any thread.
  virtual Status enqueuedError() { return {}; }
  // From any thread: makes the waits of enqueued calls end.
  virtual void stopWaits() = 0;

  // For logs.
  virtual std::string describe() const = 0;
};

// `world` and `options` are the communicator's and outlive the engine.
std::unique_ptr<Engine> makeHostEngine(host::World& world, const Options& options);
// ranksOnDevice: the most that one GPU has.
std::unique_ptr<Engine> makeCudaEngine(host::World& world, const Options& options, int ranksOnDevice);

}  // namespace fccl
