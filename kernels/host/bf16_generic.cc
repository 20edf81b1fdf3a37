#include "kernels/host/float_kernels.h"
#include "kernels/host/kernel_tables.h"
#include "kernels/host/simd_generic.h"

namespace fccl::host {

Kernel bf16KernelGeneric(Protocol protocol, Wire wire, bool norm, int ranks) {
  return findFloatKernel<Bf16, Generic>(protocol, wire, norm, ranks);
}

}  // namespace fccl::host
