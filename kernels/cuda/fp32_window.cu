#include "kernels/cuda/window_kernels.cuh"

namespace fccl::cuda {

template <>
const void* findTypedWindowKernel<Fp32>(const Form& form) {
  return findAmongWindowForms<Fp32>(form);
}

}  // namespace fccl::cuda
