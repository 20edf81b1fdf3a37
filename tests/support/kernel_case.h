// One case for the host kernels by themselves: ranks as threads over plain memory, no communicator, random delays at
// each step of the protocol, and a comparison with a scalar computation of the documented order that must match bit for
// bit.
#pragma once

#include <string>

#include "fccl.h"
#include "kernels/host/host_kernels.h"

namespace fccl::test {

struct KernelCase {
  fcclDataType_t dtype = fcclBfloat16;
  int ranks = 2;
  int64_t rows = 1;
  int64_t cols = 64;
  bool norm = false;
  bool reduced = true;  // there is a reducedOut
  QuantKind quant = QuantKind::kNone;
  host::Protocol protocol = host::Protocol::kOneshot;
  host::Wire wire = host::Wire::kFlags;
  host::Simd simd = host::Simd::kGeneric;
  host::Shape shape;
  int calls = 3;
  uint32_t firstSequence = 0;
  int delayMicroseconds = 0;
  host::Kernel kernel = nullptr;  // in place of the library's
};

// Empty, or what went wrong. Every rank's memory lies between inaccessible pages, and its slots between canaries.
std::string runKernel(const KernelCase& c, size_t slotBytes = 8192);

}  // namespace fccl::test
