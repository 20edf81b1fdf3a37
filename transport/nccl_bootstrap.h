// How ranks that have an NCCL communicator find each other for FCCL: one all-gather over it.
#pragma once

#include <functional>

#include "transport/bootstrap.h"
#include "transport/nccl_communicator.h"

namespace fccl {

// Collective: an all-gather of data in host memory, complete on return.
using HostGather = std::function<Status(const void* mine, void* all, size_t bytes)>;

// Through memory of the current GPU, on a stream of its own.
Status gatherOverNccl(NcclCommunicator& communicator, const void* mine, void* all, size_t bytes);

// Collective over `ranks` ranks: the id of the group that rank 0 opens. `mine` is what this rank has failed in before;
// a failure of any rank fails all of them, with the sentence of the lowest.
Result<fcclUniqueId> agreeOnId(int rank, int ranks, const Status& mine, const BootstrapOptions& options,
                               const HostGather& gather);

}  // namespace fccl
