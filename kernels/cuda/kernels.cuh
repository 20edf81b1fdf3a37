// The kernels of one data type and one list of forms.
#pragma once

#include <type_traits>
#include <utility>

#include "kernels/cuda/low_precision_team.cuh"
#include "kernels/cuda/sharded_team.cuh"
#include "kernels/cuda/team.cuh"
#include "kernels/low_precision.h"
#include "kernels/oneshot.h"
#include "kernels/twoshot.h"

namespace fccl::cuda {

// What of a pattern is compiled in: whether there is a norm, and NVFP4, whose code is long.
template <bool hasNorm, bool nvfp4>
struct KernelPattern : RuntimePattern<hasNorm> {
  static FCCL_TEAM_FN QuantKind quant(const RowArgs& a) {
    if (nvfp4) return QuantKind::kNvfp4;
    return a.quant == QuantKind::kNone ? QuantKind::kNone : QuantKind::kFp8;
  }
};

// Arguments stay in constant memory: a copy indexed by rank would get a frame in local memory.
template <class D, uint32_t code>
__global__ void __launch_bounds__(Form::of(code).maxThreads(), Form::of(code).minBlocks())
    collectiveKernel(const __grid_constant__ typename RowTeam<D, code>::KernelWorld world,
                     const __grid_constant__ RowArgs rows) {
  constexpr Form form = RowTeam<D, code>::form;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  if constexpr (form.cluster && form.lookAhead) return;  // planned only where there are clusters
#endif
  __shared__ typename RowTeam<D, code>::Memory memory;
  using Whole =
      std::conditional_t<form.protocol == Protocol::kLowPrecision, LowPrecisionTeam<D, code>, RowTeam<D, code>>;
  using Team = std::conditional_t<form.sharded, ShardedTeam<D, code>, Whole>;
  Team team(world, rows, memory);
  using Pattern = KernelPattern<form.norm, form.nvfp4>;
  if constexpr (form.protocol == Protocol::kOneshot) oneshot<Pattern>(team, rows);
  if constexpr (form.protocol == Protocol::kTwoshot) twoshot<Pattern>(team, rows);
  if constexpr (form.protocol == Protocol::kLowPrecision) lowPrecision<Pattern>(team, rows);
}

template <class D, const auto& forms, size_t... i>
const void* findAmong(const Form& form, std::index_sequence<i...>) {
  const void* kernel = nullptr;
  const auto look = [&]<uint32_t code>() {
    if (code == form.code()) kernel = reinterpret_cast<const void*>(&collectiveKernel<D, code>);
  };
  (look.template operator()<forms[i].code()>(), ...);
  return kernel;
}
template <class D, const auto& forms>
const void* findAmong(const Form& form) {
  return findAmong<D, forms>(form, std::make_index_sequence<sizeof(forms) / sizeof(Form)>{});
}

// One file for each, so that they are compiled side by side.
template <class D>
const void* findClusterKernel(const Form& form);
template <class D>
const void* findRowKernel(const Form& form);
template <class D>
const void* findPlainKernel(const Form& form);
template <class D>
const void* findShardedKernel(const Form& form);
template <class D>
const void* findLocalKernel(const Form& form);
template <class D>
const void* findLowPrecisionKernel(const Form& form);

}  // namespace fccl::cuda
