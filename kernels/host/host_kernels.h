// The host kernels, one set per SIMD target, chosen when the library is loaded.
#pragma once

#include "fccl.h"
#include "kernels/call.h"
#include "kernels/host/world.h"

namespace fccl::host {

enum class Simd : uint8_t { kGeneric, kAvx2, kAvx512 };
// The best that this processor has.
Simd bestSimd();
bool simdAvailable(Simd simd);
const char* simdName(Simd simd);

enum class Protocol : uint8_t { kOneshot, kTwoshot, kWindowOneshot, kWindowTwoshot, kLowPrecision };

// How a chunk gets to the peers.
//   kLamport  pushed into each peer's slot; the payload is its own flag: fewest hops, one store per peer
//   kFlags    copied once into the own staging slot, then a flag; readers pull
enum class Wire : uint8_t { kLamport, kFlags };

// How a call is cut. A chunk is `rowsPerChunk` whole rows, or, where a row does not fit into a slot, `colsPerChunk`
// columns of one row. colsPerChunk is a multiple of 64 elements unless it is the whole row.
struct Shape {
  int64_t rowsPerChunk = 1;
  int64_t colsPerChunk = 0;
  bool streamStaging = false;  // staging written past the caches: for ranks that share no L3
  bool streamOutput = false;   // reducedOut and normOut written past the caches
};

// Windows of the peers, for the kWindow protocols: peer r's copy of a buffer lies at delta[r] bytes from the own one.
struct WindowDeltas {
  const ptrdiff_t* input = nullptr;
  const ptrdiff_t* reducedOut = nullptr;
};

struct Call {
  RowArgs rows;
  Shape shape;
  WindowDeltas windows;
  fcclRedOp_t op = fcclSum;
  fcclDataType_t dtype = fcclFloat32;
};

// Runs one call on the calling thread; returns when the outputs are complete, or with world.failure set.
using Kernel = void (*)(World& world, const Call& call);

// NULL only where there is no such kernel: kLamport, kLowPrecision or a norm with another op than sum or another type
// than fp32, fp16, bf16; kWindowTwoshot with a norm; the kWindow protocols and kLowPrecision with kLamport.
Kernel findKernel(Simd simd, Protocol protocol, Wire wire, fcclDataType_t dtype, fcclRedOp_t op, bool norm, int ranks);

size_t dtypeBytes(fcclDataType_t dtype);
const char* dtypeName(fcclDataType_t dtype);

}  // namespace fccl::host
