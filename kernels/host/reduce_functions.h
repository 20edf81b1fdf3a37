// Element-wise reductions of any operator and data type, in plain loops.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fccl.h"

namespace fccl::host {

// out[i] = op over `ranks` inputs, i < n; fp16 and bf16 in fp32, everything else in its own type. out may be one of
// `in`.
using ReduceFunction = void (*)(char* out, const char* const* in, int ranks, int64_t n);

ReduceFunction findReduceFunction(fcclDataType_t dtype, fcclRedOp_t op);

}  // namespace fccl::host
