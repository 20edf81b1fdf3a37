#include "kernels/cuda/kernels.cuh"

namespace fccl::cuda {

template <>
const void* findPlainKernel<Fp16>(const Form& form) {
  return findAmong<Fp16, kPlainForms>(form);
}

}  // namespace fccl::cuda
