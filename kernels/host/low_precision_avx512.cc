#include "kernels/host/kernel_tables.h"
#include "kernels/host/low_precision_team.h"
#include "kernels/host/simd_avx512.h"

namespace fccl::host {

Kernel lowPrecisionKernelAvx512(fcclDataType_t dtype, bool norm) { return findLowPrecisionKernel<Avx512>(dtype, norm); }

}  // namespace fccl::host
