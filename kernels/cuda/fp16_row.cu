#include "kernels/cuda/kernels.cuh"

namespace fccl::cuda {

template <>
const void* findRowKernel<Fp16>(const Form& form) {
  return findAmong<Fp16, kRowForms>(form);
}

}  // namespace fccl::cuda
