// The epilogue of sums that are there already: a row per block, blocks beyond that for the padding of scales, no peers,
// no epochs. No block waits for another, so a grid may be larger than what fits at once, and the blocks of a
// multiprocessor hide each other's way to memory.
#pragma once

#include <utility>

#include "kernels/cuda/kernels.cuh"

namespace fccl::cuda {

template <class D, uint32_t formCode>
class LocalTeam : public RowBase<D, formCode> {
  using Base = RowBase<D, formCode>;

 public:
  using Base::form, Base::kPacks, Base::kEdge;
  using typename Base::Memory, typename Base::Outputs, typename Base::Rounded, typename Base::RowState;

  FCCL_TEAM_FN LocalTeam(const RowArgs& a, Memory& memory) : Base(a, memory) {}
  FCCL_TEAM_FN LocalTeam& rowTeam() { return *this; }
  template <class K>
  FCCL_TEAM_FN Raw residual(K k, const char*, Pack) const {
    return residual_[k.kValue];
  }

  template <class Pattern>
  FCCL_TEAM_FN void run(const RowArgs& a) {
    waitForPrevious();
    if (this->team_ >= this->rows_) {  // at least those that the planner has added for it
      const auto rows = static_cast<uint32_t>(this->rows_);
      if constexpr (form.nvfp4) {
        zeroScalePadding(a, rows, static_cast<uint32_t>(this->cols_), (blockIdx.x - rows) * blockDim.x + threadIdx.x,
                         (gridDim.x - rows) * blockDim.x);
      }
      return;
    }
    const Span row{this->team_, 0, this->cols_};
    load(a.input, row, sums_);
    if (a.residual != nullptr) load(a.residual, row, residual_);
    this->loadConstants();
    this->prepareMean();
    letNextBegin();
    RowState state(*this);
    Outputs outputs(*this, row.row);
    // + 0 makes -0 to +0, as in the strategies that sum here.
    rowEpilogue<Pattern>(*this, a, row, state, outputs,
                         [&](auto k, auto) FCCL_TEAM_LAMBDA { return this->add(Rounded{sums_[k.kValue]}, Raw{}); });
  }

 private:
  FCCL_TEAM_FN void load(const void* base, const Span& row, Raw (&packs)[kPacks]) const {
    const char* from = this->rowOf(base, row.row);
    this->forEachPack(row.col0, row.cols, [&](auto k, auto p) FCCL_TEAM_LAMBDA {
      packs[k.kValue] = loadUser<D, kEdge, Base::kReuse>(from, p);
    });
  }
  Raw sums_[kPacks];
  Raw residual_[kPacks];
};

// The unused world makes the arguments those of the other kernels.
template <class D, uint32_t code>
__global__ void __launch_bounds__(Form::of(code).maxThreads(), Form::of(code).minBlocks())
    localKernel(const __grid_constant__ World<1>, const __grid_constant__ RowArgs rows) {
  constexpr Form form = LocalTeam<D, code>::form;
  __shared__ typename LocalTeam<D, code>::Memory memory;
  LocalTeam<D, code> team(rows, memory);
  team.template run<KernelPattern<form.norm, form.nvfp4>>(rows);
}

template <class D, size_t... i>
const void* findLocalAmong(const Form& form, std::index_sequence<i...>) {
  const void* kernel = nullptr;
  const auto look = [&]<uint32_t code>() {
    if (code == form.code()) kernel = reinterpret_cast<const void*>(&localKernel<D, code>);
  };
  (look.template operator()<kLocalForms[i].code()>(), ...);
  return kernel;
}

}  // namespace fccl::cuda
