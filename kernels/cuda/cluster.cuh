// Row sums of a cluster of blocks: every warp writes its partial straight into the shared memory of every block of the
// cluster (st.async), and a block waits on its own mbarrier until all have come. No cluster barrier after the first.
#pragma once

#include <cstdint>

#include "kernels/team_macros.h"

namespace fccl::cuda {

FCCL_TEAM_FN uint32_t sharedAddress(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

FCCL_TEAM_FN uint32_t clusterRank() {
  uint32_t r;
  asm("mov.u32 %0, %cluster_ctarank;" : "=r"(r));
  return r;
}
FCCL_TEAM_FN uint32_t clusterBlocks() {
  uint32_t n;
  asm("mov.u32 %0, %cluster_nctarank;" : "=r"(n));
  return n;
}
FCCL_TEAM_FN uint32_t clusterNumber() {
  uint32_t n;
  asm("mov.u32 %0, %clusterid.x;" : "=r"(n));
  return n;
}
FCCL_TEAM_FN uint32_t clusters() {
  uint32_t n;
  asm("mov.u32 %0, %nclusterid.x;" : "=r"(n));
  return n;
}

// By one thread, before clusterArrive(); the fence shows the barrier to the other blocks.
FCCL_TEAM_FN void initBarrier(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(sharedAddress(barrier)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// By one thread: the running phase ends when `bytes` have come.
FCCL_TEAM_FN void expectBytes(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(sharedAddress(barrier)), "r"(bytes)
               : "memory");
}
// Acquire (of shared memory, so at the scope of the block): pairs with the completion that each st.async signals after
// its store.
FCCL_TEAM_FN void awaitPhase(uint64_t* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(sharedAddress(barrier)), "r"(parity)
        : "memory");
  }
}
// Into the same place of block `block` of the cluster.
FCCL_TEAM_FN void sendPartial(float* at, float value, uint64_t* barrier, uint32_t block) {
  uint32_t remoteAt, remoteBarrier;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remoteAt) : "r"(sharedAddress(at)), "r"(block));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remoteBarrier) : "r"(sharedAddress(barrier)), "r"(block));
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(remoteAt),
               "r"(__float_as_uint(value)), "r"(remoteBarrier)
               : "memory");
}
// Relaxed: what the others must see before they go on is the initialised barrier, which has a fence of its own.
FCCL_TEAM_FN void clusterArrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
FCCL_TEAM_FN void clusterWait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Programmatic dependent launch. After waitForPrevious() everything before this kernel in the stream has ended and is
// visible; without the launch attribute it returns at once.
FCCL_TEAM_FN void waitForPrevious() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
FCCL_TEAM_FN void letNextBegin() { asm volatile("griddepcontrol.launch_dependents;"); }

#else  // no clusters: the planner launches these kernels with one block per row

FCCL_TEAM_FN uint32_t clusterRank() { return 0; }
FCCL_TEAM_FN uint32_t clusterBlocks() { return 1; }
FCCL_TEAM_FN uint32_t clusterNumber() { return blockIdx.x; }
FCCL_TEAM_FN uint32_t clusters() { return gridDim.x; }
FCCL_TEAM_FN void initBarrier(uint64_t*) {}
FCCL_TEAM_FN void expectBytes(uint64_t*, uint32_t) {}
FCCL_TEAM_FN void awaitPhase(uint64_t*, uint32_t) { __syncthreads(); }
FCCL_TEAM_FN void sendPartial(float* at, float value, uint64_t*, uint32_t) { *at = value; }
FCCL_TEAM_FN void clusterArrive() {}
FCCL_TEAM_FN void clusterWait() {}
FCCL_TEAM_FN void waitForPrevious() {}
FCCL_TEAM_FN void letNextBegin() {}

#endif

}  // namespace fccl::cuda
