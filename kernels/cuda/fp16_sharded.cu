#include "kernels/cuda/kernels.cuh"

namespace fccl::cuda {

template <>
const void* findShardedKernel<Fp16>(const Form& form) {
  return findAmong<Fp16, kShardedForms>(form);
}

}  // namespace fccl::cuda
