#include "kernels/cuda/kernels.cuh"

namespace fccl::cuda {

template <>
const void* findLowPrecisionKernel<Fp16>(const Form& form) {
  return findAmong<Fp16, kLowPrecisionForms>(form);
}

}  // namespace fccl::cuda
