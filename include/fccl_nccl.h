/* FCCL next to NCCL: a communicator of FCCL over one that the program has already. C99; nccl.h is not needed, its
 * ncclComm_t is a struct ncclComm*. */
#ifndef FCCL_NCCL_H_
#define FCCL_NCCL_H_

#include "fccl.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ncclComm;

/* Collective over the ranks of ncclComm, each on a thread of its own or in a process of its own; not inside of a group.
 * *comm gets ncclComm's ranks and GPUs. The ranks find each other by one all-gather over ncclComm, which is complete on
 * return, so neither fcclGetUniqueId nor anything else of the program's is needed. config may be NULL; its deviceType,
 * where it is set, must be CUDA, and its cudaDevice is not looked at.
 *
 * ncclComm stays the program's, which goes on using it as before. FCCL enqueues on it only within calls of *comm: what
 * the strategies NCCL and NCCL_SYMMETRIC do when they are asked for (strategy, FCCL_STRATEGY), and types and operators
 * that FCCL has no kernels for. Such a call has its place in the order of NCCL's calls of ncclComm, as an ncclAllReduce
 * in its place would, and is never made by FCCL's own choice otherwise.
 *
 * Destroy *comm before ncclComm. fcclCommAbort ends what waits in FCCL's kernels; what NCCL was given ends by
 * ncclCommAbort, which is the program's to call. NCCL 2.19 or newer, the copy that made ncclComm; a communicator of a
 * non-blocking initialisation must be ready (ncclCommGetAsyncError gives ncclSuccess), else fcclInvalidUsage. */
FCCL_API fcclResult_t fcclCommInitNccl(fcclComm_t* comm, struct ncclComm* ncclComm, const fcclConfig_t* config);

/* Whether FCCL does such a call faster than ncclAllReduce, with whatever would follow that: *faster gets 1 or 0, the
 * same on all ranks. By the times of both, where the tuning has NCCL's for about this size (docs/selection.md); else
 * what FCCL has a strategy of its own for counts as faster, and what it would leave to NCCL, or cannot do, does not.
 * Local; moves and enqueues nothing, and may be called from any thread and while a stream is captured. Slower than a
 * call: keep the answer, which only fcclCommTune changes. */
FCCL_API fcclResult_t fcclFasterThanNccl(fcclComm_t comm, const fcclQuery_t* query, int* faster);

#ifdef __cplusplus
}
#endif

#endif /* FCCL_NCCL_H_ */
