#include "kernels/cuda/kernels.cuh"

namespace fccl::cuda {

template <>
const void* findPlainKernel<Fp32>(const Form& form) {
  return findAmong<Fp32, kPlainForms>(form);
}

}  // namespace fccl::cuda
