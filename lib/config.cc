#include "lib/config.h"

#include <climits>
#include <cstddef>

#include "base/check.h"
#include "base/log.h"
#include "lib/struct_header.h"
#include "lib/validate.h"
#include "transport/cuda_device.h"

namespace fccl {
namespace {

constexpr int kSlotUnit = 4096;
constexpr int kMaxSlotBytes = 64 << 20;
constexpr int kMinCudaWorkspaceBytes = 1 << 20;
constexpr int kMaxCudaWorkspaceBytes = 1 << 30;  // three of them are addressed with 32 bits
constexpr int kCudaWorkspaceUnit = 4096;

// Takes the field `value` over into `target` unless it is undefined.
template <class T>
Status takeField(const char* name, int value, int smallest, int largest, T* target) {
  if (value == FCCL_CONFIG_UNDEF_INT) return {};
  if (value < smallest || value > largest) {
    return failure(fcclInvalidArgument, "fcclConfig_t.{} is {}; it must be from {} to {}, or FCCL_CONFIG_UNDEF_INT.",
                   name, value, smallest, largest);
  }
  *target = static_cast<T>(value);
  return {};
}

Status takeConfig(const fcclConfig_t& config, Options* options) {
  static constexpr size_t kOldSize = offsetof(fcclConfig_t, tuningFile);
  static constexpr StructVersion kVersions[] = {
      {2, kOldSize}, {3, kOldSize}, {FCCL_CONFIG_VERSION, sizeof(fcclConfig_t)}};
  FCCL_TRY(checkHeader(config, "fcclConfig_t", "FCCL_CONFIG_INITIALIZER", FCCL_CONFIG_MAGIC, kVersions));
  FCCL_TRY(takeField("deviceType", config.deviceType, fcclDeviceAuto, fcclDeviceCuda, &options->deviceType));
  if (config.strategy != FCCL_CONFIG_UNDEF_INT && strategyName(config.strategy) == nullptr) {
    return failure(fcclInvalidArgument,
                   "fcclConfig_t.strategy is {}; it must be a value of fcclStrategy_t, or FCCL_CONFIG_UNDEF_INT.",
                   config.strategy);
  }
  FCCL_TRY(takeField("strategy", config.strategy, 0, INT_MAX, &options->strategy));
  FCCL_TRY(takeField("checkCalls", config.checkCalls, 0, 1, &options->checkCalls));
  FCCL_TRY(takeField("timeoutMs", config.timeoutMs, 0, INT_MAX, &options->timeoutMs));
  FCCL_TRY(takeField("initTimeoutMs", config.initTimeoutMs, 0, INT_MAX, &options->initTimeoutMs));
  FCCL_TRY(takeField("sharedMemory", config.sharedMemory, fcclSharedMemoryAuto, fcclSharedMemoryPosix,
                     &options->sharedMemory));
  FCCL_TRY(takeField("bindCores", config.bindCores, 0, 1, &options->bindCores));
  FCCL_TRY(takeField("slotBytes", config.slotBytes, kSlotUnit, kMaxSlotBytes, &options->slotBytes));
  if (config.netName != nullptr) options->interface = config.netName;
  FCCL_TRY(takeField("cudaDevice", config.cudaDevice, 0, INT_MAX, &options->cudaDevice));
  FCCL_TRY(takeField("allowSharedDevice", config.allowSharedDevice, 0, 1, &options->allowSharedDevice));
  FCCL_TRY(takeField("cudaWorkspaceBytes", config.cudaWorkspaceBytes, kMinCudaWorkspaceBytes, kMaxCudaWorkspaceBytes,
                     &options->cudaWorkspaceBytes));
  FCCL_TRY(takeField("nccl", config.nccl, 0, 1, &options->nccl));
  if (config.tuningFile != nullptr) options->tuningFile = config.tuningFile;
  return {};
}

Status takeEnvironment(const Environment& environment, Options* options) {
  options->deviceType = environment.deviceType.value_or(options->deviceType);
  options->allowSharedDevice = environment.allowSharedDevice.value_or(options->allowSharedDevice);
  options->cudaWorkspaceBytes = environment.cudaWorkspaceBytes.value_or(options->cudaWorkspaceBytes);
  options->cudaWorkspaceBytes =
      (options->cudaWorkspaceBytes + kCudaWorkspaceUnit - 1) / kCudaWorkspaceUnit * kCudaWorkspaceUnit;
  options->cudaMemory = environment.cudaMemory;
  options->nccl = environment.nccl.value_or(options->nccl);
  options->ncclLibrary = environment.ncclLibrary.value_or(options->ncclLibrary);
  options->topologyFile = environment.topologyFile.value_or(options->topologyFile);
  options->topologyDump = environment.topologyDump.value_or(options->topologyDump);
  options->tuningFile = environment.tuningFile.value_or(options->tuningFile);
  if (environment.autotune) options->autotune = environment.autotune;
  options->hostId = environment.hostId.value_or(options->hostId);
  options->strategy = environment.strategy.value_or(options->strategy);
  options->checkCalls = environment.checkCalls.value_or(options->checkCalls);
  options->programmaticLaunch = environment.programmaticLaunch.value_or(options->programmaticLaunch);
  options->timeoutMs = environment.timeoutMs.value_or(options->timeoutMs);
  options->initTimeoutMs = environment.initTimeoutMs.value_or(options->initTimeoutMs);
  options->sharedMemory = environment.sharedMemory.value_or(options->sharedMemory);
  options->bindCores = environment.bindCores.value_or(options->bindCores);
  options->interface = environment.socketIfname.value_or(options->interface);
  options->rendezvous = environment.commId.value_or(options->rendezvous);
  if (environment.slotBytes.value_or(kSlotUnit) < kSlotUnit || environment.slotBytes.value_or(0) > kMaxSlotBytes) {
    return failure(fcclInvalidArgument, "FCCL_SLOT_BYTES is {}; it must be from {} to {}.", *environment.slotBytes,
                   kSlotUnit, kMaxSlotBytes);
  }
  options->slotBytes = environment.slotBytes.value_or(options->slotBytes);
  return {};
}

Result<host::Simd> chooseSimd(SimdTarget wanted) {
  host::Simd simd = host::bestSimd();
  switch (wanted) {
    case SimdTarget::kAuto: break;
    case SimdTarget::kGeneric: simd = host::Simd::kGeneric; break;
    case SimdTarget::kAvx2: simd = host::Simd::kAvx2; break;
    case SimdTarget::kAvx512: simd = host::Simd::kAvx512; break;
  }
  if (!host::simdAvailable(simd)) {
    return failure(
        fcclInvalidArgument,
        "FCCL_SIMD asks for {}, which this processor (or this build of FCCL) does not have; the best here is {}.",
        host::simdName(simd), host::simdName(host::bestSimd()));
  }
  return simd;
}

}  // namespace

fcclConfig_t copyConfig(const fcclConfig_t& config) noexcept {
  const fcclConfig_t initial = FCCL_CONFIG_INITIALIZER;
  fcclConfig_t copy = copyStruct(config, initial);
  if (copy.version == 2) copy.nccl = initial.nccl;  // where version 2 had padding
  return copy;
}

std::chrono::milliseconds Options::initTimeout() const {
  if (initTimeoutMs == 0) return std::chrono::hours(24 * 365);
  return std::chrono::milliseconds(initTimeoutMs);
}

BootstrapOptions Options::bootstrap() const {
  BootstrapOptions result;
  result.timeout = initTimeout();
  result.interface = interface;
  result.rendezvous = rendezvous;
  return result;
}

Result<Options> resolveOptions(const fcclConfig_t* config, const Environment& environment, const Options& base) {
  Options options = base;
  if (config != nullptr) FCCL_TRY(takeConfig(copyConfig(*config), &options));
  FCCL_TRY(takeEnvironment(environment, &options));
  options.slotBytes = (options.slotBytes + kSlotUnit - 1) / kSlotUnit * kSlotUnit;
  FCCL_TRY_ASSIGN(options.simd, chooseSimd(environment.simd));
  return options;
}

Status chooseDevice(Options* options) {
  if (options->deviceType == fcclDeviceHost) return {};
  const Result<int> device = usableCudaDevice(options->cudaDevice);
  if (device.ok()) {
    options->deviceType = fcclDeviceCuda;
    options->cudaDevice = device.value();
    return {};
  }
  if (options->deviceType == fcclDeviceCuda) {
    return failure(device.status().code(), "deviceType is CUDA (fcclConfig_t or FCCL_DEVICE), but {}",
                   device.status().message());
  }
  FCCL_INFO("HOST, since {}", device.status().message());
  options->deviceType = fcclDeviceHost;
  return {};
}

}  // namespace fccl
