#include "kernels/cuda/local.cuh"

namespace fccl::cuda {

template <>
const void* findLocalKernel<Fp16>(const Form& form) {
  return findLocalAmong<Fp16>(form, std::make_index_sequence<sizeof(kLocalForms) / sizeof(Form)>{});
}

}  // namespace fccl::cuda
