// The CUDA kernels as the host sees them: what they need of a communicator, how a call is planned, how it is launched.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/launch_plan.h"

namespace fccl::cuda {

constexpr int kMaxRanks = 72;

constexpr uint32_t kEpochWords = 512;
constexpr uint64_t kEpochs = 3;

// Device memory of one rank that no peer touches; zeroed before first use.
struct DeviceState {
  uint32_t epochs[kEpochWords];  // of the next call: 0, 1, 2, 0, ...; all the same between two calls
  uint32_t arrived;              // blocks of a grid of more than kEpochWords that have read the epoch
  uint32_t aborted;              // a wait has been given up: all other waits end too
  uint32_t windowCalls;          // user-buffer launches that have ended here
  uint32_t windowArrived;        // blocks of the running one that are done with the windows
};

// In each rank's symmetric memory, behind the epochs; zeroed before any peer has the pointer.
struct WindowFlags {
  uint32_t reached[kMaxRanks];  // by rank that writes: 2n + 1 when it has begun its launch n, 2n + 2 when it is done
};

// Where peer r's copy of a buffer lies, in bytes from the own one.
struct Windows {
  int64_t input[kMaxRanks];
  int64_t reducedOut[kMaxRanks];  // calls without norm
  bool nextBeginsEarly;           // as in Launch
};

// Pinned host memory, mapped into the device.
struct HostWords {
  uint32_t abort;    // host to device: every wait ends
  uint32_t expired;  // device to host: 1 + the rank that was awaited when the time limit passed
};

// What a kernel knows of its communicator. Symmetric memory of each rank: three epochs, every word armed with the
// Lamport sentinel before any peer has the pointer, then WindowFlags. `memory` stands last: kernels for few ranks take
// a shorter struct.
struct CudaWorld {
  int rank;
  int ranks;
  uint64_t epochBytes;  // at most 2^30: three of them are addressed with 32 bits
  DeviceState* state;
  HostWords* hostWords;
  uint64_t timeoutNanoseconds;  // 0: none
  char* memory[kMaxRanks];
};

cudaError_t readDeviceFacts(int device, DeviceFacts* facts);

Shape shapeOf(Protocol protocol, fcclDataType_t dtype, const RowArgs& rows);

// NULL in launch->kernel: no kernel for this shape; `reason` (a sentence, not owned) says why.
cudaError_t plan(const DeviceFacts& facts, const CudaWorld& world, const Shape& shape, const ShapeWish& wish,
                 Launch* launch, const char** reason);

// The same for a call of user buffers: all ranks' inputs and, without norm, outputs are in windows. shape.protocol:
// kOneshot with a norm, kTwoshot without; shape.aligned: of all ranks' buffers in windows too. No kernel: a row is too
// long.
cudaError_t planWindows(const DeviceFacts& facts, int ranks, const Shape& shape, const ShapeWish& wish, Launch* launch);

// The epilogue alone, of rows that something else has reduced: a kernel of its own, or, where rows are not aligned or
// too long for it, ONESHOT of a world of one rank, which has no slots. `state` is its own, for the launches of one
// stream. Of `wish` only packsPerThread counts.
CudaWorld epilogueWorld(DeviceState* state, HostWords* words);
cudaError_t planEpilogue(const DeviceFacts& facts, const CudaWorld& world, const Shape& shape, const ShapeWish& wish,
                         Launch* launch, const char** reason);
// Rows [first, first + count) of a call with a norm; `sums` is where the first of them stands reduced, in place of
// rows.input. It may be normOut's.
cudaError_t launchEpilogue(const Launch& launch, fcclDataType_t dtype, const CudaWorld& world, const RowArgs& rows,
                           int64_t first, int64_t count, const void* sums, cudaStream_t stream);

// Enqueues one call. All ranks' kernels of a call must be able to run at the same time: see DeviceFacts::ranksOnDevice.
// `windows`: of a plan of planWindows().
cudaError_t launch(const Launch& launch, fcclDataType_t dtype, const CudaWorld& world, const RowArgs& rows,
                   cudaStream_t stream, const Windows* windows = nullptr);

// Loads every kernel on the current device, and lets those that stage rows have their shared memory; before plan().
// CUDA otherwise loads a kernel when it is first used, and may wait for the device then: for ever, where a kernel of
// another rank waits for that launch.
// sharedDevice: ranks share the device. Multiprocessors on which their kernels wait then offer as much shared memory as
// they can to other kernels, such as those of the rank that is waited for: what part of its memory a multiprocessor
// gives to shared memory changes only while nothing runs on it, and most kernels here ask for little.
cudaError_t load(bool sharedDevice);

// Fills `bytes` (a multiple of 16) with the sentinel.
cudaError_t arm(char* memory, uint64_t bytes, cudaStream_t stream);

}  // namespace fccl::cuda
