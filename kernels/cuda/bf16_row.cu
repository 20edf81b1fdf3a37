#include "kernels/cuda/kernels.cuh"

namespace fccl::cuda {

template <>
const void* findRowKernel<Bf16>(const Form& form) {
  return findAmong<Bf16, kRowForms>(form);
}

}  // namespace fccl::cuda
