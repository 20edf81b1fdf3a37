#include "kernels/cuda/window_kernels.cuh"

namespace fccl::cuda {

template <>
const void* findTypedWindowKernel<Bf16>(const Form& form) {
  return findAmongWindowForms<Bf16>(form);
}

}  // namespace fccl::cuda
