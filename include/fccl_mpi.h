/* Header-only: a communicator over the ranks of an MPI communicator. The library itself does not need MPI. */
#ifndef FCCL_MPI_H_
#define FCCL_MPI_H_

#include <mpi.h>

#include "fccl.h"

/* Collective over mpiComm; rank and size are MPI's. An error of rank 0's fcclGetUniqueId is returned on every rank. MPI
 * failures are fcclSystemError (with MPI_ERRORS_RETURN; by default MPI ends the program itself). */
static inline fcclResult_t fcclCommInitMpi(fcclComm_t* comm, MPI_Comm mpiComm, const fcclConfig_t* config) {
  struct {
    fcclUniqueId id;
    int result;
  } announce;
  int rank = 0;
  int nranks = 0;
  if (comm == NULL) return fcclInvalidArgument; /* NOLINT(modernize-use-nullptr): C has none */
  *comm = NULL;                                 /* NOLINT(modernize-use-nullptr) */
  if (MPI_Comm_rank(mpiComm, &rank) != MPI_SUCCESS || MPI_Comm_size(mpiComm, &nranks) != MPI_SUCCESS) {
    return fcclSystemError;
  }
  announce.result = rank == 0 ? (int)fcclGetUniqueId(&announce.id) : (int)fcclSuccess;
  if (MPI_Bcast(&announce, (int)sizeof(announce), MPI_BYTE, 0, mpiComm) != MPI_SUCCESS) return fcclSystemError;
  if (announce.result != (int)fcclSuccess) return (fcclResult_t)announce.result;
  /* Without the barrier a rank could block in fcclCommInit while MPI still needs its progress to finish the broadcast
   * to another. */
  if (MPI_Barrier(mpiComm) != MPI_SUCCESS) return fcclSystemError;
  return fcclCommInit(comm, nranks, announce.id, rank, config);
}

#endif /* FCCL_MPI_H_ */
