#include "kernels/host/float_kernels.h"
#include "kernels/host/kernel_tables.h"
#include "kernels/host/simd_generic.h"

namespace fccl::host {

Kernel fp32KernelGeneric(Protocol protocol, Wire wire, bool norm, int ranks) {
  return findFloatKernel<Fp32, Generic>(protocol, wire, norm, ranks);
}

}  // namespace fccl::host
