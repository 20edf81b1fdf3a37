#include "kernels/cuda/window_kernels.cuh"

namespace fccl::cuda {

template <>
const void* findTypedWindowKernel<Fp16>(const Form& form) {
  return findAmongWindowForms<Fp16>(form);
}

}  // namespace fccl::cuda
