// The CUDA kernels as the host sees them.
#pragma once

#include <cuda_runtime_api.h>

#include "fccl.h"
#include "kernels/call.h"
#include "kernels/team_macros.h"

namespace fccl::cuda {

constexpr int kMaxRanks = 72;

enum class Protocol : uint8_t { kOneshot, kTwoshot };

// Device memory of one rank that no peer touches; zeroed before first use.
struct DeviceState {
  uint32_t epoch;    // of the next call, modulo 2^32
  uint32_t arrived;  // blocks of the running call that have read the epoch
  uint32_t aborted;  // a wait has been given up: all other waits end too
};

// Pinned host memory, mapped into the device.
struct HostWords {
  uint32_t abort;    // host to device: every wait ends
  uint32_t expired;  // device to host: 1 + the rank that was awaited when the time limit passed
};

// What a kernel knows of its communicator. Symmetric memory of each rank: three epochs, each
//   [channel: 2][source rank][row][row stride of the call]
// every word armed with the Lamport sentinel before any peer has the pointer.
struct CudaWorld {
  char* memory[kMaxRanks];
  int rank;
  int ranks;
  uint64_t epochBytes;
  DeviceState* state;
  HostWords* hostWords;
  uint64_t timeoutNanoseconds;  // 0: none
};

// Rows stand in slots at multiples of 16 bytes.
constexpr FCCL_BOTH_FN uint64_t rowStride(int64_t cols, size_t elementBytes) {
  return (static_cast<uint64_t>(cols) * elementBytes + 15) / 16 * 16;
}
// Bytes of one epoch that a call needs.
constexpr FCCL_BOTH_FN uint64_t epochBytes(int ranks, int64_t rows, int64_t cols, size_t elementBytes) {
  return 2u * static_cast<uint64_t>(ranks) * static_cast<uint64_t>(rows) * rowStride(cols, elementBytes);
}

struct LaunchShape {
  int blocks;   // any number is right; rows are strided over them
  int threads;  // a multiple of 32, at most 1024
};

// Enqueues one call. fp32, fp16, bf16; sum. cudaErrorInvalidValue: a row has more packs of 16 bytes than 4 per thread,
// or the call needs more than world.epochBytes. All ranks' kernels of a call must be able to run at the same time.
cudaError_t launch(Protocol protocol, fcclDataType_t dtype, const CudaWorld& world, const RowArgs& rows,
                   const LaunchShape& shape, cudaStream_t stream);

// Loads every kernel on the current device. CUDA otherwise loads a kernel when it is first launched, and waits for the
// device then: for ever, where a kernel of another rank waits for that launch.
cudaError_t load();

// Fills `bytes` (a multiple of 16) with the sentinel.
cudaError_t arm(char* memory, uint64_t bytes, cudaStream_t stream);

}  // namespace fccl::cuda
