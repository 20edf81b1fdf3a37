// ONESHOT of kernels/oneshot.h for two ranks, written out for one wire, one data type and one pattern at a time with
// AVX-512 intrinsics: what the template over Team is measured against. Same slots, flags, sequence numbers and bits, so
// that both may run in turn on the same memory. One row is one chunk; hidden sizes are multiples of 64, buffers
// aligned.
#pragma once

#include "kernels/host/host_kernels.h"

namespace fccl::perf {

// NULL on a machine without AVX-512 (F, BW, DQ, VL, BF16).
struct HandWritten {
  host::Kernel plainLamport;  // fp32, no epilogue
  host::Kernel plainFlags;
  host::Kernel plainStreamed;  // flags, staging past the caches
  host::Kernel fusedLamport;   // bf16, residual + RMSNorm with a bf16 weight
  host::Kernel fusedFlags;
  host::Kernel fusedStreamed;
};
const HandWritten* handWritten();

}  // namespace fccl::perf
