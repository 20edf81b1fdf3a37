// What a communicator is made with: the caller's fcclConfig_t and the environment, resolved and checked.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/environment.h"
#include "base/status.h"
#include "kernels/host/host_kernels.h"
#include "transport/bootstrap.h"
#include "transport/nccl_library.h"

namespace fccl {

struct Options {
  fcclDeviceType_t deviceType = fcclDeviceAuto;
  fcclStrategy_t strategy = fcclStrategyAuto;  // stands for AUTO
  bool checkCalls = false;
  bool programmaticLaunch = true;  // of CUDA kernels
  int timeoutMs = 300'000;         // 0: none
  int initTimeoutMs = 120'000;     // 0: none
  fcclSharedMemory_t sharedMemory = fcclSharedMemoryAuto;
  bool bindCores = false;
  int slotBytes = 256 << 10;
  std::string interface;
  std::string rendezvous;
  host::Simd simd = host::Simd::kGeneric;
  int cudaDevice = -1;  // -1: not named
  bool allowSharedDevice = false;
  // Of one staging area. Larger calls are several launches, and each costs what a call of few rows costs; 64 MiB hold
  // ONESHOT of 2048 rows x 8192 columns of bf16 on two ranks.
  int cudaWorkspaceBytes = 64 << 20;
  CudaMemoryWay cudaMemory = CudaMemoryWay::kAuto;
  bool nccl = false;              // asked for; see wantsNccl()
  std::string ncclLibrary;        // empty: as the loader finds it
  nccl::Comm ncclComm = nullptr;  // the caller's, to be used in place of one of our own

  // CUDA: whether this communicator is to have one of NCCL's beside it.
  bool wantsNccl() const {
    return nccl || ncclComm != nullptr || strategy == fcclStrategyNccl || strategy == fcclStrategyNcclSymmetric;
  }
  std::string topologyFile;      // empty: the machine is looked at
  std::string topologyDump;      // where rank 0 writes the topology
  std::string tuningFile;        // of rank 0; empty: none
  std::optional<bool> autotune;  // see Autotune
  std::string hostId;            // of the rank's node; empty: the kernel's boot id

  // For every wait of initialisation; a year where there is no limit.
  std::chrono::milliseconds initTimeout() const;
  BootstrapOptions bootstrap() const;
};

// A field that is left undefined keeps its value in `base` (the defaults, or the parent's options in a split); an
// environment variable wins over the field. `config` may be NULL. fcclInvalidArgument names the field, its value and
// what it may be.
Result<Options> resolveOptions(const fcclConfig_t* config, const Environment& environment, const Options& base);

// What the caller's struct, of whatever version, has, over the initializer's values; a header that is wrong stays so.
fcclConfig_t copyConfig(const fcclConfig_t& config) noexcept;

// Settles AUTO, and for CUDA which GPU: the one named, else the calling thread's current one. A failure says why CUDA,
// where it was asked for, is not to be had.
Status chooseDevice(Options* options);

}  // namespace fccl
