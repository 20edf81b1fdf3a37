#include "kernels/host/float_kernels.h"
#include "kernels/host/kernel_tables.h"
#include "kernels/host/simd_avx2.h"

namespace fccl::host {

Kernel fp32KernelAvx2(Protocol protocol, Wire wire, bool norm, int ranks) {
  return findFloatKernel<Fp32, Avx2>(protocol, wire, norm, ranks);
}

}  // namespace fccl::host
