/* FCCL for kernels: whoever produces the input of a fused all-reduce, as the epilogue of a GEMM does, writes it
 * straight into the slots in which the peers wait for it. The all-reduce after it has nothing left to send, and the way
 * over the link lies in the shadow of the producer.
 *
 *   once per shape   fcclDevicePush_t push = FCCL_DEVICE_PUSH_INITIALIZER;
 *                    fcclDevicePushInit(comm, tokens, hidden, dtype, &push);
 *   per call         gemm<<<grid, block, 0, stream>>>(..., partial, push);
 *                    args.input = partial;
 *                    args.inputPushed = 1;
 *                    fcclAllReduceFused(&args, comm, stream);
 *   in the kernel    __global__ void gemm(..., bf16* partial, const __grid_constant__ fcclDevicePush_t push) {
 *                      const fcclPushEpoch_t epoch = fcclPushBegin(push);
 *                      ...
 *                      for each 16 bytes of the tile:
 *                        store them to partial, which the own all-reduce reads
 *                        fcclPushPack(push, epoch, row, column, them);
 *
 * The host's part is C99 without CUDA headers; the device part is there for nvcc. examples/gemm_epilogue is a program
 * that does all this.
 *
 * Rules
 * - Every pack of [tokens, hidden] is pushed exactly once per call, by any thread of any kernel, in any order, and is
 *   what stands in `input`.
 * - Pushing kernels run after the call of this communicator that comes before, and before the call that takes what they
 *   push: enqueue them between the two, on the stream of both. One that is launched with programmatic stream
 *   serialization must not touch a slot before it has waited for the kernel before; fcclPushBegin does so.
 * - The call has the tokens, hidden and dtype of fcclDevicePushInit, any pattern, and runs as ONESHOT. All ranks push a
 *   call, or none does; calls that are pushed and calls that are not may follow each other in any order.
 * - Once something is pushed, its call must follow. Where that call is refused, or the ranks disagree about it, the
 *   slots hold what nobody takes: destroy the communicator.
 * - Kernels may be captured into graphs together with their calls, and replayed.
 *
 * Protocol, for those who store in a way of their own. A slot is made of 32-bit words that all hold FCCL_PUSH_SENTINEL
 * until they are written. The receiver takes a word for arrived as soon as it holds anything else; there is no other
 * flag, and so no fence and no order among the stores. Therefore a word of the data that equals the sentinel is sent as
 * 0 (fcclPushClean): -0 of fp32 becomes +0, the pair (+0, -0) of fp16 and bf16 becomes (+0, +0), which changes no bit
 * of a sum. fcclPushAddress says where a pack goes, by fcclPushEpoch_t: the slots of three calls lie side by side, and
 * which of them is next is read from GPU memory, so that a replayed graph finds the right ones.
 *
 * Why a slot is free: the pushing kernel of call e + 3 begins when this rank's kernel of call e + 2 has ended. That one
 * needed what the peer sent for call e + 2, itself or through a third rank, and the peer sent it (in its kernel, or in
 * its pushing kernel) after its kernel of call e had ended, which took what stood in this slot and armed it again. */
#ifndef FCCL_DEVICE_H_
#define FCCL_DEVICE_H_

#include "fccl.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FCCL_DEVICE_PUSH_MAGIC 0xfcc1dec1u
#define FCCL_DEVICE_PUSH_VERSION 1u
#define FCCL_DEVICE_PUSH_MAX_RANKS 72
#define FCCL_PUSH_SENTINEL 0x80000000u

/* Where a rank's rows of one shape go. Start from FCCL_DEVICE_PUSH_INITIALIZER; fcclDevicePushInit fills the rest,
 * which only the functions below need to know. Passed to kernels by value, as const __grid_constant__. */
typedef struct {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int rank;
  int ranks;
  int64_t tokens;
  int64_t hidden;
  fcclDataType_t dtype;
  uint32_t elementBytes;
  uint32_t rowBytes;
  uint32_t epochBytes;                     /* from the slots of one call to those of the next */
  const uint32_t* epoch;                   /* GPU memory: 0, 1 or 2, of the next call */
  const uint32_t* aborted;                 /* GPU memory: not 0 where nothing must be sent any more */
  char* slots[FCCL_DEVICE_PUSH_MAX_RANKS]; /* GPU memory of each rank: this rank's row 0, epoch 0 */
} fcclDevicePush_t;

#define FCCL_DEVICE_PUSH_INITIALIZER                                                                               \
  {                                                                                                                \
    sizeof(fcclDevicePush_t), FCCL_DEVICE_PUSH_MAGIC, FCCL_DEVICE_PUSH_VERSION, 0, 0, 0, 0, fcclBfloat16, 0, 0, 0, \
        NULL, NULL, {                                                                                              \
      NULL                                                                                                         \
    }                                                                                                              \
  }

/* Fills *push for calls of [tokens, hidden] of dtype (fp32, fp16 or bf16). Local, without any CUDA call; valid as long
 * as comm, on one GPU with it. fcclInvalidArgument, with the cure in fcclGetLastError: comm is on HOST; rows that are
 * not whole packs of 16 bytes (hidden a multiple of 8, for fp32 of 4); more than ranks * tokens * hidden elements in a
 * staging area of cudaWorkspaceBytes. With one rank there is nobody to push to, and the device functions do nothing. */
FCCL_API fcclResult_t fcclDevicePushInit(fcclComm_t comm, int64_t tokens, int64_t hidden, fcclDataType_t dtype,
                                         fcclDevicePush_t* push);

#ifdef __cplusplus
}
#endif

/* ---- In kernels ----------------------------------------------------------------------------------------------- */

#if defined(__CUDACC__)

/* What a thread reads once per call, as it stands in memory, so that nothing waits for it before it is used. */
typedef struct {
  uint32_t number;  /* 0, 1 or 2: which slots */
  uint32_t aborted; /* not 0: nothing must be sent. A wait has been given up, and a peer may still be at that call, for
                       whose data it would take what comes into its slots */
} fcclPushEpoch_t;

/* With programmatic dependent launch: returns when everything before this kernel in the stream has ended and is
 * visible; else at once. Every thread that pushes calls it, or fcclPushBegin, before it touches a slot. */
__device__ __forceinline__ void fcclPushWaitForPrevious() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Waits for the kernel before, and reads where this call's slots are. Once per thread, early: a trip to memory. */
__device__ __forceinline__ fcclPushEpoch_t fcclPushBegin(const fcclDevicePush_t& push) {
  fcclPushWaitForPrevious();
  fcclPushEpoch_t epoch;
  /* Volatile: replays of a graph, and a kernel that began before the one before it had ended, find other values. */
  epoch.number = *static_cast<const volatile uint32_t*>(push.epoch);
  epoch.aborted = *static_cast<const volatile uint32_t*>(push.aborted);
  return epoch;
}

/* No word of a pack may look like one that has not come. */
__device__ __forceinline__ uint4 fcclPushClean(uint4 pack) {
  pack.x = pack.x == FCCL_PUSH_SENTINEL ? 0u : pack.x;
  pack.y = pack.y == FCCL_PUSH_SENTINEL ? 0u : pack.y;
  pack.z = pack.z == FCCL_PUSH_SENTINEL ? 0u : pack.z;
  pack.w = pack.w == FCCL_PUSH_SENTINEL ? 0u : pack.w;
  return pack;
}

/* Where the pack that begins at `column` (a multiple of 16 bytes) of `row` goes at rank `peer`. Nothing is stored where
 * epoch.aborted, nor for peer == push.rank. */
__device__ __forceinline__ void* fcclPushAddress(const fcclDevicePush_t& push, fcclPushEpoch_t epoch, int peer, int row,
                                                 int column) {
  /* The slots of a rank are addressed with 32 bits. */
  const uint32_t inCall =
      static_cast<uint32_t>(row) * push.rowBytes + static_cast<uint32_t>(column) * push.elementBytes;
  return push.slots[peer] + (epoch.number * push.epochBytes + inCall);
}

/* Stores the 16 bytes that begin at `column` of `row` at every peer. Relaxed at system scope: each word is its own
 * flag, and nothing else hangs on it. */
__device__ __forceinline__ void fcclPushPack(const fcclDevicePush_t& push, fcclPushEpoch_t epoch, int row, int column,
                                             uint4 pack) {
  if (epoch.aborted != 0) return;
  pack = fcclPushClean(pack);
  /* Each rank begins with another peer, so that they do not all write to the same one. */
  for (int step = 1; step < push.ranks; step++) {
    int peer = push.rank + step;
    if (peer >= push.ranks) peer -= push.ranks;
    asm volatile(
        "st.relaxed.sys.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(fcclPushAddress(push, epoch, peer, row, column)),
        "r"(pack.x), "r"(pack.y), "r"(pack.z), "r"(pack.w));
  }
}

#endif /* __CUDACC__ */

#endif /* FCCL_DEVICE_H_ */
