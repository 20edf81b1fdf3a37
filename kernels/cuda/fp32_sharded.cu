#include "kernels/cuda/kernels.cuh"

namespace fccl::cuda {

template <>
const void* findShardedKernel<Fp32>(const Form& form) {
  return findAmong<Fp32, kShardedForms>(form);
}

}  // namespace fccl::cuda
