#include "kernels/cuda/kernels.cuh"

namespace fccl::cuda {

template <>
const void* findShardedKernel<Bf16>(const Form& form) {
  return findAmong<Bf16, kShardedForms>(form);
}

}  // namespace fccl::cuda
