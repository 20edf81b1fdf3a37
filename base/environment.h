// The one place that reads the environment. Every variable that FCCL knows is a field here; docs/environment.md lists
// them, and a test compares the two.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/status.h"

namespace fccl {

enum class SimdTarget { kAuto, kGeneric, kAvx2, kAvx512 };

// How GPU memory is shared: allocations of the driver's virtual memory management, or cudaMalloc and cudaIpc.
enum class CudaMemoryWay { kAuto, kVmm, kIpc };

// Which calls of NCCL's the preload shim serves by FCCL: none, those that gain, or, for tests, those of one rank too.
enum class NcclShim { kOff, kOn, kAlways };

struct Environment {
  static constexpr size_t kMostHostId = 63;

  LogLevel debug = LogLevel::kNone;                // FCCL_DEBUG=NONE|WARN|INFO|TRACE
  std::optional<fcclStrategy_t> strategy;          // FCCL_STRATEGY: the name of a strategy, or auto
  std::optional<bool> checkCalls;                  // FCCL_CHECK=0|1
  std::optional<int> timeoutMs;                    // FCCL_TIMEOUT_MS
  std::optional<int> initTimeoutMs;                // FCCL_INIT_TIMEOUT_MS
  std::optional<fcclSharedMemory_t> sharedMemory;  // FCCL_SHARED_MEMORY=auto|memfd|posix
  std::optional<bool> bindCores;                   // FCCL_BIND_CORES=0|1
  std::optional<int> slotBytes;                    // FCCL_SLOT_BYTES
  std::optional<std::string> socketIfname;         // FCCL_SOCKET_IFNAME: "eth0", or "^lo,docker" to exclude prefixes
  std::optional<std::string> commId;           // FCCL_COMM_ID=host:port of rank 0's listener, in place of a unique id
  SimdTarget simd = SimdTarget::kAuto;         // FCCL_SIMD=generic|avx2|avx512
  std::optional<fcclDeviceType_t> deviceType;  // FCCL_DEVICE=auto|host|cuda
  std::optional<bool> allowSharedDevice;       // FCCL_ALLOW_SHARED_DEVICE=0|1
  std::optional<int> cudaWorkspaceBytes;       // FCCL_CUDA_WORKSPACE_BYTES
  std::optional<bool> programmaticLaunch;      // FCCL_PDL=0|1
  CudaMemoryWay cudaMemory = CudaMemoryWay::kAuto;  // FCCL_CUDA_MEMORY=auto|vmm|ipc
  std::optional<bool> nccl;                         // FCCL_NCCL=0|1
  std::optional<std::string> ncclLibrary;           // FCCL_NCCL_LIB: a path, or a name for the loader
  NcclShim ncclShim = NcclShim::kOn;                // FCCL_NCCL_SHIM=0|1|always
  std::optional<int> ncclShimBytes;                 // FCCL_NCCL_SHIM_BYTES
  std::optional<std::string> topologyFile;          // FCCL_TOPO_FILE
  std::optional<std::string> topologyDump;          // FCCL_TOPO_DUMP
  std::optional<std::string> tuningFile;            // FCCL_TUNING_FILE
  std::optional<bool> autotune;                     // FCCL_AUTOTUNE=0|1
  std::optional<std::string> hostId;                // FCCL_HOSTID

  // A bad value is fcclInvalidArgument naming variable, value and the values allowed. `environment` is a list of
  // "NAME=value"; names that begin with FCCL_ and are not known are returned in `unknown`.
  static Result<Environment> parse(const std::vector<std::string>& environment, std::vector<std::string>* unknown);

  // The names that parse() knows.
  static std::vector<std::string_view> names();

  // What parse() makes of the process's own environment, read again at each initialisation of a communicator; warns
  // about unknown names and sets the log level.
  static Result<Environment> read();
};

}  // namespace fccl
