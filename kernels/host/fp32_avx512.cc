#include "kernels/host/float_kernels.h"
#include "kernels/host/kernel_tables.h"
#include "kernels/host/simd_avx512.h"

namespace fccl::host {

Kernel fp32KernelAvx512(Protocol protocol, Wire wire, bool norm, int ranks) {
  return findFloatKernel<Fp32, Avx512>(protocol, wire, norm, ranks);
}

}  // namespace fccl::host
