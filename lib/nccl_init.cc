// The C entry point that makes a communicator over one of NCCL's.
#include "base/check.h"
#include "fccl_nccl.h"
#include "lib/c_boundary.h"
#include "lib/formation.h"
#include "lib/group.h"
#include "transport/nccl_bootstrap.h"

using namespace fccl;

namespace {

// This rank's GPU is ncclComm's, whatever config says.
Status settle(Options* options, const NcclCommunicator& over) {
  FCCL_TRY(checkRanks(over.ranks(), over.rank()));
  if (options->deviceType == fcclDeviceHost) {
    return failure(fcclInvalidArgument,
                   "deviceType is HOST (fcclConfig_t or FCCL_DEVICE); fcclCommInitNccl makes CUDA communicators, leave "
                   "it undefined.");
  }
  options->deviceType = fcclDeviceCuda;
  options->cudaDevice = over.device();
  // A fixed address serves one group, and the ranks of this one need none.
  options->rendezvous.clear();
  return chooseDevice(options);
}

Status initNccl(fcclComm_t* comm, nccl::Comm ncclComm, const fcclConfig_t* config) {
  if (comm == nullptr) return failure(fcclInvalidArgument, "comm is NULL.");
  *comm = nullptr;
  if (ncclComm == nullptr) return failure(fcclInvalidArgument, "ncclComm is NULL.");
  if (group::open()) {
    return failure(fcclInvalidUsage, "fcclCommInitNccl is called in a group; call it before fcclGroupStart.");
  }
  FCCL_TRY_ASSIGN(const Environment environment, Environment::read());
  FCCL_TRY_ASSIGN(auto library, NcclLibrary::find(environment.ncclLibrary.value_or("")));
  FCCL_TRY_ASSIGN(const std::unique_ptr<NcclCommunicator> over, NcclCommunicator::adopt(library, ncclComm));

  // From here on a failure is told to the other ranks, who are in the same all-gather.
  Result<Options> options = resolveOptions(config, environment, Options());
  Status mine = options.status();
  if (mine.ok()) mine = settle(&options.value(), *over);
  const BootstrapOptions bootstrap = options.ok() ? options.value().bootstrap() : BootstrapOptions();
  FCCL_TRY_ASSIGN(const fcclUniqueId id, agreeOnId(over->rank(), over->ranks(), mine, bootstrap,
                                                   [&](const void* own, void* all, size_t bytes) {
                                                     return gatherOverNccl(*over, own, all, bytes);
                                                   }));
  options.value().ncclComm = ncclComm;
  // A program that has its ways with NCCL is not made to wait for the GPU, unless it asks for that.
  options.value().autotune = options.value().autotune.value_or(false);
  FCCL_TRY_ASSIGN(std::unique_ptr<Communicator> communicator,
                  Communicator::create(id, over->rank(), over->ranks(), options.value()));
  *comm = makeHandle(std::move(communicator));
  return {};
}

}  // namespace

fcclResult_t fcclCommInitNccl(fcclComm_t* comm, struct ncclComm* ncclComm, const fcclConfig_t* config) {
  return group::spoil(boundary("fcclCommInitNccl", nullptr,
                               [&] { return initNccl(comm, reinterpret_cast<nccl::Comm>(ncclComm), config); }));
}
