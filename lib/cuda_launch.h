// From a checked call to launches of kernels.
#pragma once

#include "base/status.h"
#include "kernels/cuda/cuda_kernels.h"
#include "lib/validate.h"
#include "tuner/registry.h"

namespace fccl {

// A staging area holds this many rows of `cols` columns at most.
int64_t rowsThatFit(const cuda::CudaWorld& world, int64_t cols, size_t elementBytes);

// The rows [first, first + rows) of a call as a call of their own. Scales of the swizzled layouts stand in tiles, at
// whose borders `first` must lie.
RowArgs partOf(const RowArgs& all, int64_t first, int64_t rows, size_t elementBytes);

// Enqueues the call on its stream: one launch, or several where the staging areas do not hold it, or a call without
// norm is no whole number of rows as the plan cuts them. No allocation, no other CUDA call.
Status enqueue(const cuda::CudaWorld& world, const CheckedCall& call, const Plan& plan);

}  // namespace fccl
