// The CUDA kernels as the host sees them: what they need of a communicator, how a call is planned, how it is launched.
#pragma once

#include <cuda_runtime_api.h>

#include "fccl.h"
#include "kernels/call.h"

namespace fccl::cuda {

constexpr int kMaxRanks = 72;

enum class Protocol : uint8_t { kOneshot, kTwoshot };

constexpr uint32_t kEpochWords = 512;

// Device memory of one rank that no peer touches; zeroed before first use.
struct DeviceState {
  uint32_t epochs[kEpochWords];  // of the next call: 0, 1, 2, 0, ...; all the same between two calls
  uint32_t arrived;              // blocks of a grid of more than kEpochWords that have read the epoch
  uint32_t aborted;              // a wait has been given up: all other waits end too
};

// Pinned host memory, mapped into the device.
struct HostWords {
  uint32_t abort;    // host to device: every wait ends
  uint32_t expired;  // device to host: 1 + the rank that was awaited when the time limit passed
};

// What a kernel knows of its communicator. Symmetric memory of each rank: three epochs, every word armed with the
// Lamport sentinel before any peer has the pointer. `memory` stands last: kernels for few ranks take a shorter struct.
struct CudaWorld {
  int rank;
  int ranks;
  uint64_t epochBytes;  // at most 2^32 - 1
  DeviceState* state;
  HostWords* hostWords;
  uint64_t timeoutNanoseconds;  // 0: none
  char* memory[kMaxRanks];
};

// What planning knows of the device.
struct DeviceFacts {
  int multiprocessors = 0;
  int architecture = 0;      // 90 for compute capability 9.0
  int ranksOnDevice = 1;     // whose kernels must be able to run side by side on this device
  bool programmatic = true;  // programmatic dependent launch (FCCL_PDL)
  static cudaError_t of(int device, DeviceFacts* facts);
};

// How one call is launched. Any number of blocks is right: rows are strided over them, and no block waits for another
// one of its grid.
struct Launch {
  const void* kernel = nullptr;
  int blocks = 0;
  int threads = 0;
  int cluster = 0;  // blocks of a cluster; 0: no clusters
  bool programmatic = false;
  int64_t rowsPerLaunch = 0;  // a call with more rows is several launches: what the epochs hold
};

// What a plan is made for; everything that it depends on, so that equal shapes have equal plans.
struct Shape {
  Protocol protocol = Protocol::kOneshot;
  fcclDataType_t dtype = fcclBfloat16;  // fp32, fp16, bf16; the sum
  int64_t rows = 0;                     // a call without norm is one row
  int64_t cols = 0;
  bool norm = false;
  QuantKind quant = QuantKind::kNone;
  bool aligned = true;  // all rows begin at multiples of 16 bytes
};
Shape shapeOf(Protocol protocol, fcclDataType_t dtype, const RowArgs& rows);

// A launch shape asked for instead of the planner's; 0: the planner's.
struct ShapeWish {
  int packsPerThread = 0;
  int threads = 0;
  int cluster = 0;
  int blocks = 0;
  bool loops = false;  // where there is a choice, the kernel whose blocks may take several rows
};

// NULL in launch->kernel: no kernel for this shape; `reason` (a sentence, not owned) says why.
cudaError_t plan(const DeviceFacts& facts, const CudaWorld& world, const Shape& shape, const ShapeWish& wish,
                 Launch* launch, const char** reason);

// Enqueues one call. All ranks' kernels of a call must be able to run at the same time: see DeviceFacts::ranksOnDevice.
cudaError_t launch(const Launch& launch, fcclDataType_t dtype, const CudaWorld& world, const RowArgs& rows,
                   cudaStream_t stream);

// Loads every kernel on the current device. CUDA otherwise loads a kernel when it is first used, and may wait for the
// device then: for ever, where a kernel of another rank waits for that launch.
cudaError_t load();

// Fills `bytes` (a multiple of 16) with the sentinel.
cudaError_t arm(char* memory, uint64_t bytes, cudaStream_t stream);

// Bytes of one epoch that a call needs.
uint64_t epochBytes(Protocol protocol, int ranks, int64_t rows, int64_t cols, size_t elementBytes);

}  // namespace fccl::cuda
