// Packs that a thread has asked for and does not hold in registers yet: in shared memory that only this thread touches,
// filled by asynchronous copies, so that the next rows come while this one is computed. And its weights, as they are
// multiplied with: fp32, the bias added.
#pragma once

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/forms.h"
#include "kernels/cuda/packs.cuh"

namespace fccl::cuda {

template <int packs>
class RowStage {
 public:
  FCCL_TEAM_FN RowStage() : mine_(sharedAddress(base()) + threadIdx.x * 16u) {}

  // Pack k of row i of this block, from 16 aligned bytes; zeros where it is not inside of the row.
  FCCL_TEAM_FN void fetchInput(int i, int k, const char* from, bool inside) const {
    fetch(inputPiece(i, k), from, inside);
  }
  FCCL_TEAM_FN void fetchResidual(int i, int k, const char* from, bool inside) const {
    fetch(residualPiece(i, k), from, inside);
  }
  FCCL_TEAM_FN Raw input(int i, int k) const { return load(inputPiece(i, k)); }
  FCCL_TEAM_FN Raw residual(int i, int k) const { return load(residualPiece(i, k)); }

  template <int elements>
  FCCL_TEAM_FN void keepWeight(int k, const Floats<elements>& w) const {
#pragma unroll
    for (int h = 0; h < elements / 4; h++) {
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at(weightPiece(k, h))), "f"(w.v[4 * h]),
                   "f"(w.v[4 * h + 1]), "f"(w.v[4 * h + 2]), "f"(w.v[4 * h + 3]));
    }
  }
  template <int elements>
  FCCL_TEAM_FN Floats<elements> weight(int k) const {
    Floats<elements> w;
#pragma unroll
    for (int h = 0; h < elements / 4; h++) {
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(w.v[4 * h]), "=f"(w.v[4 * h + 1]), "=f"(w.v[4 * h + 2]), "=f"(w.v[4 * h + 3])
                   : "r"(at(weightPiece(k, h))));
    }
    return w;
  }

  // What has been asked for since the last close() comes together; wait<n>(): all but the n last groups are there.
  static FCCL_TEAM_FN void close() { asm volatile("cp.async.commit_group;"); }
  template <int n>
  static FCCL_TEAM_FN void wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(n));
  }

 private:
  static FCCL_TEAM_FN char* base() {
    extern __shared__ __align__(16) char dynamicShared[];
    return dynamicShared;
  }
  static FCCL_TEAM_FN int inputPiece(int i, int k) { return i % kStagedInputs * packs + k; }
  static FCCL_TEAM_FN int residualPiece(int i, int k) { return (kStagedInputs + i % kStagedResiduals) * packs + k; }
  static FCCL_TEAM_FN int weightPiece(int k, int h) {
    return (kStagedInputs + kStagedResiduals) * packs + kWeightPieces * k + h;
  }
  FCCL_TEAM_FN uint32_t at(int piece) const { return mine_ + static_cast<uint32_t>(piece) * blockDim.x * 16u; }
  FCCL_TEAM_FN void fetch(int piece, const char* from, bool inside) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at(piece)), "l"(from), "r"(inside ? 16 : 0));
  }
  FCCL_TEAM_FN Raw load(int piece) const {
    Raw raw;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.words[0]), "=r"(raw.words[1]), "=r"(raw.words[2]), "=r"(raw.words[3])
                 : "r"(at(piece)));
    return raw;
  }
  uint32_t mine_;
};

}  // namespace fccl::cuda
