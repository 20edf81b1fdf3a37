#include "kernels/host/kernel_tables.h"
#include "kernels/host/low_precision_team.h"
#include "kernels/host/simd_generic.h"

namespace fccl::host {

Kernel lowPrecisionKernelGeneric(fcclDataType_t dtype, bool norm) {
  return findLowPrecisionKernel<Generic>(dtype, norm);
}

}  // namespace fccl::host
