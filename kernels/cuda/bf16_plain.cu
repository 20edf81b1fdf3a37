#include "kernels/cuda/kernels.cuh"

namespace fccl::cuda {

template <>
const void* findPlainKernel<Bf16>(const Form& form) {
  return findAmong<Bf16, kPlainForms>(form);
}

}  // namespace fccl::cuda
