// fcclCommInitNccl for machines without GPUs, linked into a copy of the shim in libfccl.so's place: a HOST communicator
// over the stand-in's, so that FCCL serves calls there. It may be asked for a call that waits for other ranks.
#include <vector>

#include "fccl_nccl.h"
#include "lib/shim/real.h"

using fccl::shim::callReal;

fcclResult_t fcclCommInitNccl(fcclComm_t* comm, struct ncclComm* ncclComm, const fcclConfig_t*) {
  int rank = 0;
  int ranks = 0;
  callReal("ncclCommUserRank", ncclComm, &rank);
  callReal("ncclCommCount", ncclComm, &ranks);
  fcclUniqueId id{};
  if (rank == 0) {
    if (const fcclResult_t result = fcclGetUniqueId(&id); result != fcclSuccess) return result;
  }
  std::vector<fcclUniqueId> all(static_cast<size_t>(ranks));
  void* const none = nullptr;
  callReal("ncclAllGather", static_cast<const void*>(&id), static_cast<void*>(all.data()), sizeof id,
           static_cast<int>(fcclInt8), ncclComm, none);
  fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
  config.deviceType = fcclDeviceHost;
  return fcclCommInit(comm, ranks, all[0], rank, &config);
}
