#include "kernels/cuda/kernels.cuh"

namespace fccl::cuda {

template <>
const void* findClusterKernel<Bf16>(const Form& form) {
  return findAmong<Bf16, kClusterForms>(form);
}

}  // namespace fccl::cuda
