#include "kernels/host/float_kernels.h"
#include "kernels/host/kernel_tables.h"
#include "kernels/host/simd_avx512.h"

namespace fccl::host {

Kernel bf16KernelAvx512(Protocol protocol, Wire wire, bool norm, int ranks) {
  return findFloatKernel<Bf16, Avx512>(protocol, wire, norm, ranks);
}

}  // namespace fccl::host
