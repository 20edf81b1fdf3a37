// The MPI side of fccl-perf: ranks as MPI processes, and MPI_Allreduce as the peer. Without FCCL_HAVE_MPI everything
// here throws std::runtime_error, and haveMpi() is false.
//
// Peers, by the data type of the case:
//   mpi       fp32, fp64, integers: MPI_Allreduce in the type itself
//   mpi-fp32  fp16, bf16: widened to fp32, MPI_Allreduce of MPI_FLOAT, narrowed (or read as fp32 by the epilogue)
//   mpi-op    fp16, bf16: MPI_Allreduce in 16 bit with a vectorised operator of our own
// For fused patterns each is followed by the loops of epilogue_loops.h.
#pragma once

#include <functional>
#include <string>

#include "tests/perf/variants.h"

namespace fccl::perf {

bool haveMpi();
// True in a process that mpirun has started.
bool startedByMpirun();
// "Open MPI v4.1.4"
std::string mpiVersion();

// Replaces this process by mpirun, which starts `ranks` of this program with the same arguments. Returns only to throw.
[[noreturn]] void executeUnderMpirun(int ranks, char** argv);

// Initialises MPI, runs `body`, finalizes. An exception ends all ranks: message on stderr, exit status 1.
void runAsMpiRank(const std::function<void(Ranks&)>& body);

// Appends the peers of `c`.
void addMpiPeers(const Case& c, bool inPlace, int rank, int ranks, Variants& variants);

}  // namespace fccl::perf
