#include "kernels/cuda/local.cuh"

namespace fccl::cuda {

template <>
const void* findLocalKernel<Bf16>(const Form& form) {
  return findLocalAmong<Bf16>(form, std::make_index_sequence<sizeof(kLocalForms) / sizeof(Form)>{});
}

}  // namespace fccl::cuda
