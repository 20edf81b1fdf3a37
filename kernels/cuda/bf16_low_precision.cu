#include "kernels/cuda/kernels.cuh"

namespace fccl::cuda {

template <>
const void* findLowPrecisionKernel<Bf16>(const Form& form) {
  return findAmong<Bf16, kLowPrecisionForms>(form);
}

}  // namespace fccl::cuda
