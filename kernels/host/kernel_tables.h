// What each SIMD target's files give to the lookup in dispatch.cc.
#pragma once

#include "kernels/host/host_kernels.h"

namespace fccl::host {

Kernel fp32KernelAvx512(Protocol protocol, Wire wire, bool norm, int ranks);
Kernel bf16KernelAvx512(Protocol protocol, Wire wire, bool norm, int ranks);
Kernel fp16KernelAvx512(Protocol protocol, Wire wire, bool norm, int ranks);
Kernel fp32KernelAvx2(Protocol protocol, Wire wire, bool norm, int ranks);
Kernel bf16KernelAvx2(Protocol protocol, Wire wire, bool norm, int ranks);
Kernel fp16KernelAvx2(Protocol protocol, Wire wire, bool norm, int ranks);
Kernel fp32KernelGeneric(Protocol protocol, Wire wire, bool norm, int ranks);
Kernel bf16KernelGeneric(Protocol protocol, Wire wire, bool norm, int ranks);
Kernel fp16KernelGeneric(Protocol protocol, Wire wire, bool norm, int ranks);

// LOWPRECISION's for fp32, bf16, fp16 and any number of ranks.
Kernel lowPrecisionKernelAvx512(fcclDataType_t dtype, bool norm);
Kernel lowPrecisionKernelAvx2(fcclDataType_t dtype, bool norm);
Kernel lowPrecisionKernelGeneric(fcclDataType_t dtype, bool norm);

// Any operator, any data type.
Kernel reduceKernel(Protocol protocol);

}  // namespace fccl::host
