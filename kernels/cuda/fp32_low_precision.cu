#include "kernels/cuda/kernels.cuh"

namespace fccl::cuda {

template <>
const void* findLowPrecisionKernel<Fp32>(const Form& form) {
  return findAmong<Fp32, kLowPrecisionForms>(form);
}

}  // namespace fccl::cuda
