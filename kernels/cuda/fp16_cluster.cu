#include "kernels/cuda/kernels.cuh"

namespace fccl::cuda {

template <>
const void* findClusterKernel<Fp16>(const Form& form) {
  return findAmong<Fp16, kClusterForms>(form);
}

}  // namespace fccl::cuda
