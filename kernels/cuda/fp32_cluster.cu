#include "kernels/cuda/kernels.cuh"

namespace fccl::cuda {

template <>
const void* findClusterKernel<Fp32>(const Form& form) {
  return findAmong<Fp32, kClusterForms>(form);
}

}  // namespace fccl::cuda
