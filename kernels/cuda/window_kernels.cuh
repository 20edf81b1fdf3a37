// The kernels for user buffers of one data type.
#pragma once

#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/window_forms.h"
#include "kernels/cuda/window_team.cuh"
#include "kernels/user_buffer.h"

namespace fccl::cuda {

// Two blocks of the largest size per multiprocessor: bytes are time here, and more loads under way at once.
template <class D, uint32_t code>
__global__ void __launch_bounds__(Form::of(code).maxThreads(), 2)
    windowKernel(const __grid_constant__ CudaWorld world, const __grid_constant__ RowArgs rows,
                 const __grid_constant__ Windows windows) {
  __shared__ typename WindowTeam<D, code>::Memory memory;
  WindowTeam<D, code> team(world, rows, windows, memory);
  constexpr Form form = WindowTeam<D, code>::form;
  using Pattern = KernelPattern<form.norm, form.nvfp4>;
  if constexpr (form.norm) {
    userBufferOneshot<Pattern>(team, rows);
  } else {
    userBufferTwoshot<Pattern>(team, rows);
  }
}

template <class D, size_t... i>
const void* findAmongWindowForms(const Form& form, std::index_sequence<i...>) {
  const void* kernel = nullptr;
  const auto look = [&]<uint32_t code>() {
    if (code == form.code()) kernel = reinterpret_cast<const void*>(&windowKernel<D, code>);
  };
  (look.template operator()<kWindowForms[i].code()>(), ...);
  return kernel;
}
template <class D>
const void* findAmongWindowForms(const Form& form) {
  return findAmongWindowForms<D>(form, std::make_index_sequence<sizeof(kWindowForms) / sizeof(Form)>{});
}

}  // namespace fccl::cuda
