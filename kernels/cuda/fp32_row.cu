#include "kernels/cuda/kernels.cuh"

namespace fccl::cuda {

template <>
const void* findRowKernel<Fp32>(const Form& form) {
  return findAmong<Fp32, kRowForms>(form);
}

}  // namespace fccl::cuda
