// Which calls of ncclAllReduce FCCL may serve itself, if it is faster at them. A function of what all ranks pass alike,
// so that all decide alike.
#pragma once

#include <cstddef>

#include "base/environment.h"

namespace fccl::shim {

// A kernel of FCCL's that waits for its peers leaves NCCL's kernels of other communicators the multiprocessors that it
// does not fill: at most 64 blocks up to here. Past it a program whose communicators run side by side could stand
// still, each rank's GPU waiting in another one. FCCL_NCCL_SHIM_BYTES is for programs that have one at a time.
constexpr size_t kMostBytes = size_t{256} << 10;

struct Policy {
  NcclShim mode = NcclShim::kOn;
  size_t mostBytes = kMostBytes;
  bool checked = false;  // FCCL_CHECK: calls wait on the host for those of the other ranks

  // `dtype` and `op` are NCCL's numbers, which may be those of operators of the caller's own.
  bool mayServe(int ranks, size_t count, int dtype, int op) const {
    const bool knownType = dtype == fcclFloat16 || dtype == fcclBfloat16 || dtype == fcclFloat32;
    if (mode == NcclShim::kOff || !knownType || op != fcclSum || count == 0) return false;
    if (count > mostBytes / (dtype == fcclFloat32 ? 4 : 2)) return false;
    // The sum of one rank is its input, which NCCL leaves where it is.
    return ranks > 1 || mode == NcclShim::kAlways;
  }
};

}  // namespace fccl::shim
