#include "kernels/cuda/local.cuh"

namespace fccl::cuda {

template <>
const void* findLocalKernel<Fp32>(const Form& form) {
  return findLocalAmong<Fp32>(form, std::make_index_sequence<sizeof(kLocalForms) / sizeof(Form)>{});
}

}  // namespace fccl::cuda
