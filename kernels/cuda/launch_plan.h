// How a call is launched on CUDA, as plain data: also for builds without the toolkit.
#pragma once

#include "fccl.h"
#include "kernels/call.h"
#include "kernels/fp8_wire.h"

namespace fccl::cuda {

enum class Protocol : uint8_t { kOneshot, kTwoshot, kLowPrecision };

// What planning knows of the device.
struct DeviceFacts {
  int multiprocessors = 0;
  int architecture = 0;      // 90 for compute capability 9.0
  int ranksOnDevice = 1;     // whose kernels must be able to run side by side on this device
  bool programmatic = true;  // programmatic dependent launch
  bool remoteDomain = true;  // the memory synchronization domain for traffic to other devices
};

// How one call is launched. Any number of blocks is right: rows are strided over them, and no block waits for another
// one of its grid.
struct Launch {
  const void* kernel = nullptr;
  int blocks = 0;
  int threads = 0;
  int cluster = 0;      // blocks of a cluster; 0: no clusters
  int sharedBytes = 0;  // of dynamic shared memory
  bool programmatic = false;
  bool remoteDomain = false;     // the fences of other kernels do not wait for what this one writes to its peers
  bool nextBeginsEarly = false;  // user buffers: the next kernel's blocks come while peers are still reading
  int64_t rowsPerLaunch = 0;     // a call with more rows is several launches: what the epochs hold
};

// What a plan is made for; everything that it depends on, so that equal shapes have equal plans.
struct Shape {
  Protocol protocol = Protocol::kOneshot;
  fcclDataType_t dtype = fcclBfloat16;  // fp32, fp16, bf16; the sum
  int64_t rows = 0;                     // a call without norm counts as one row, whatever its rows and columns
  int64_t cols = 0;
  bool norm = false;
  QuantKind quant = QuantKind::kNone;
  bool aligned = true;   // all rows begin at multiples of 16 bytes
  bool sharded = false;  // the residual; TWOSHOT
};

// A launch shape asked for instead of the planner's; 0: the planner's.
struct ShapeWish {
  int packsPerThread = 0;
  int threads = 0;
  int cluster = 0;
  int blocks = 0;
  bool loops = false;  // where there is a choice, the kernel whose blocks may take several rows
};

constexpr size_t elementBytes(fcclDataType_t dtype) { return dtype == fcclFloat32 ? 4 : 2; }

// All rows of a call begin at multiples of 16 bytes. A call without norm is one row.
inline bool packsAligned(const RowArgs& rows, fcclDataType_t dtype) {
  uintptr_t all = rows.weight != nullptr ? static_cast<uintptr_t>(rows.cols) * elementBytes(dtype) : 0;
  for (const void* p :
       {rows.input, rows.residual, rows.weightIsFp32 ? nullptr : rows.weight, static_cast<const void*>(rows.reducedOut),
        static_cast<const void*>(rows.residualOut), static_cast<const void*>(rows.normOut)}) {
    all |= reinterpret_cast<uintptr_t>(p);
  }
  return all % 16 == 0;
}

// Bytes of one epoch that a call needs. TWOSHOT: a slot for each owner's row of every source, and one for every row
// that is gathered; without norm (one row) shares of packs. LOWPRECISION: the same of FP8, shares for either half.
constexpr uint64_t epochBytes(Protocol protocol, int ranks, int64_t rows, int64_t cols, size_t elementBytes) {
  const auto n = static_cast<uint64_t>(ranks);
  const auto count = static_cast<uint64_t>(rows);
  const uint64_t stride = (static_cast<uint64_t>(cols) * elementBytes + 15) / 16 * 16;
  if (protocol == Protocol::kOneshot) return n * count * stride;
  if (protocol == Protocol::kLowPrecision) {
    const int64_t share = (cols + ranks - 1) / ranks + 8;  // whole packs
    const auto shares = 2 * n * static_cast<uint64_t>(fp8RowBytes(share));
    const auto whole = ((count + n - 1) / n * n + count) * static_cast<uint64_t>(fp8RowBytes(cols));
    return rows == 1 && shares > whole ? shares : whole;
  }
  if (rows == 1) return (stride / 16 + n - 1) / n * n * 16 + stride + n * stride;  // whichever of the two it is
  return ((count + n - 1) / n * n + count) * stride;
}

// The same of TWOSHOT with a sharded residual, whose launches take as many rows of every owner, some of them without.
constexpr uint64_t shardedEpochBytes(int ranks, int64_t rows, int64_t cols, size_t elementBytes) {
  const auto n = static_cast<uint64_t>(ranks);
  const uint64_t stride = (static_cast<uint64_t>(cols) * elementBytes + 15) / 16 * 16;
  return 2 * ((static_cast<uint64_t>(rows) + n - 1) / n * n) * stride;
}

}  // namespace fccl::cuda
