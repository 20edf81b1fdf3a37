#include "kernels/host/kernel_tables.h"
#include "kernels/host/low_precision_team.h"
#include "kernels/host/simd_avx2.h"

namespace fccl::host {

Kernel lowPrecisionKernelAvx2(fcclDataType_t dtype, bool norm) { return findLowPrecisionKernel<Avx2>(dtype, norm); }

}  // namespace fccl::host
