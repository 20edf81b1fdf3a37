// The C entry points that make, ask and end communicators.
#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "base/check.h"
#include "lib/c_boundary.h"
#include "lib/formation.h"
#include "lib/group.h"

using namespace fccl;

namespace {

// fcclCommAbort waits this long for a call that is under way to notice.
constexpr auto kAbortWait = std::chrono::seconds(1);

Status needPointer(const char* name, const void* pointer) {
  if (pointer != nullptr) return {};
  return failure(fcclInvalidArgument, "{} is NULL.", name);
}

Result<Options> optionsFrom(const fcclConfig_t* config, const Options& base) {
  FCCL_TRY_ASSIGN(const Environment environment, Environment::read());
  return resolveOptions(config, environment, base);
}

Status create(fcclComm_t* comm, int ranks, const fcclUniqueId& id, int rank, const Options& options) {
  FCCL_TRY_ASSIGN(std::unique_ptr<Communicator> communicator, Communicator::create(id, rank, ranks, options));
  *comm = makeHandle(std::move(communicator));
  return {};
}

Status init(fcclComm_t* comm, int ranks, const fcclUniqueId& id, int rank, const fcclConfig_t* config) {
  FCCL_TRY(needPointer("comm", comm));
  *comm = nullptr;
  FCCL_TRY(checkRanks(ranks, rank));
  FCCL_TRY_ASSIGN(Options options, optionsFrom(config, Options()));
  FCCL_TRY(chooseDevice(&options));
  if (!group::open()) return create(comm, ranks, id, rank, options);
  // A thread of the group's is not the one that will drive the rank.
  if (options.bindCores) FCCL_WARN("bindCores has no effect in a group: bind the threads that drive the ranks.");
  options.bindCores = false;
  group::defer(nullptr, true, [=] {
    return boundary("fcclCommInit", nullptr, [&] { return create(comm, ranks, id, rank, options); });
  });
  return {};
}

Status initAll(fcclComm_t* comms, int ranks, const fcclConfig_t* config) {
  FCCL_TRY(needPointer("comms", comms));
  FCCL_TRY(checkRanks(ranks, 0));
  std::fill(comms, comms + ranks, nullptr);
  FCCL_TRY_ASSIGN(const Options options, optionsFrom(config, Options()));
  FCCL_TRY_ASSIGN(auto communicators, formInOneProcess(ranks, options));
  for (size_t r = 0; r < communicators.size(); r++) comms[r] = makeHandle(std::move(communicators[r]));
  return {};
}

Result<Options> optionsOfSplit(Communicator& parent, const fcclConfig_t* config) {
  if (config == nullptr) return parent.options();
  FCCL_TRY_ASSIGN(Options options, optionsFrom(config, parent.options()));
  FCCL_TRY(chooseDevice(&options));
  return options;
}

Status splitInto(Communicator& parent, int color, int key, fcclComm_t* newComm, const fcclConfig_t* config) {
  FCCL_TRY(needPointer("newComm", newComm));
  *newComm = nullptr;
  FCCL_TRY(parent.usable());
  FCCL_TRY_ASSIGN(std::unique_ptr<Communicator> communicator,
                  split(parent, color, key, optionsOfSplit(parent, config)));
  if (communicator != nullptr) *newComm = makeHandle(std::move(communicator));
  return {};
}

fcclResult_t splitNow(fcclComm_t comm, int color, int key, fcclComm_t* newComm, const fcclConfig_t* config) {
  return insideCommunicator("fcclCommSplit", comm,
                            [&](Communicator& parent) { return splitInto(parent, color, key, newComm, config); });
}

Status destroy(fcclComm_t comm) {
  FCCL_TRY(checkHandle(comm));
  Inside inside(comm);
  if (!inside.entered()) return anotherThreadInside();
  if (!endHandle(comm)) return checkHandle(comm);
  inside.keep();
  freeHandle(comm);
  return {};
}

Status abortCommunicator(fcclComm_t comm) {
  FCCL_TRY(checkHandle(comm));
  if (!endHandle(comm)) return checkHandle(comm);
  comm->communicator->abort();
  const auto deadline = std::chrono::steady_clock::now() + kAbortWait;
  while (true) {
    Inside inside(comm);
    if (inside.entered()) {
      inside.keep();
      freeHandle(comm);
      return {};
    }
    if (std::chrono::steady_clock::now() >= deadline) break;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return failure(fcclSystemError,
                 "A call that is under way did not return within {} s after the abort; its memory is left to it.",
                 kAbortWait.count());
}

}  // namespace

fcclResult_t fcclGetVersion(int* version) {
  return boundary("fcclGetVersion", nullptr, [&]() -> Status {
    FCCL_TRY(needPointer("version", version));
    *version = FCCL_VERSION_CODE;
    return {};
  });
}

fcclResult_t fcclGetUniqueId(fcclUniqueId* id) {
  return boundary("fcclGetUniqueId", nullptr, [&]() -> Status {
    FCCL_TRY(needPointer("id", id));
    FCCL_TRY_ASSIGN(const Options options, optionsFrom(nullptr, Options()));
    return Bootstrap::createId(options.bootstrap(), id);
  });
}

fcclResult_t fcclCommInit(fcclComm_t* comm, int nranks, fcclUniqueId id, int rank, const fcclConfig_t* config) {
  return group::spoil(boundary("fcclCommInit", nullptr, [&] { return init(comm, nranks, id, rank, config); }));
}

fcclResult_t fcclCommInitAll(fcclComm_t* comms, int nranks, const fcclConfig_t* config) {
  return boundary("fcclCommInitAll", nullptr, [&] { return initAll(comms, nranks, config); });
}

fcclResult_t fcclCommSplit(fcclComm_t comm, int color, int key, fcclComm_t* newComm, const fcclConfig_t* config) {
  if (!group::open()) return splitNow(comm, color, key, newComm, config);
  return group::spoil(withCommunicator("fcclCommSplit", comm, [&](Communicator& parent) -> Status {
    FCCL_TRY(needPointer("newComm", newComm));
    *newComm = nullptr;
    FCCL_TRY(checkColor(color));
    FCCL_TRY(optionsOfSplit(parent, config).status());
    const std::optional<fcclConfig_t> copy = config != nullptr ? std::optional(copyConfig(*config)) : std::nullopt;
    group::defer(comm, true, [=] { return splitNow(comm, color, key, newComm, copy ? &*copy : nullptr); });
    return {};
  }));
}

fcclResult_t fcclCommFinalize(fcclComm_t comm) {
  return insideCommunicator("fcclCommFinalize", comm, [](Communicator& communicator) {
    communicator.finalize();
    return Status();
  });
}

fcclResult_t fcclCommDestroy(fcclComm_t comm) {
  return boundary("fcclCommDestroy", nullptr, [&] { return destroy(comm); });
}

fcclResult_t fcclCommAbort(fcclComm_t comm) {
  return boundary("fcclCommAbort", nullptr, [&] { return abortCommunicator(comm); });
}

fcclResult_t fcclCommGetAsyncError(fcclComm_t comm, fcclResult_t* asyncError) {
  return withCommunicator("fcclCommGetAsyncError", comm, [&](Communicator& communicator) -> Status {
    FCCL_TRY(needPointer("asyncError", asyncError));
    *asyncError = communicator.failed().code();
    return {};
  });
}

fcclResult_t fcclCommCount(fcclComm_t comm, int* count) {
  return withCommunicator("fcclCommCount", comm, [&](Communicator& communicator) -> Status {
    FCCL_TRY(needPointer("count", count));
    *count = communicator.ranks();
    return {};
  });
}

fcclResult_t fcclCommUserRank(fcclComm_t comm, int* rank) {
  return withCommunicator("fcclCommUserRank", comm, [&](Communicator& communicator) -> Status {
    FCCL_TRY(needPointer("rank", rank));
    *rank = communicator.rank();
    return {};
  });
}

fcclResult_t fcclCommDevice(fcclComm_t comm, int* device) {
  return withCommunicator("fcclCommDevice", comm, [&](Communicator& communicator) -> Status {
    FCCL_TRY(needPointer("device", device));
    *device = communicator.device();
    return {};
  });
}

const char* fcclGetErrorString(fcclResult_t result) { return resultName(result); }

const char* fcclGetLastError(fcclComm_t comm) {
  try {
    if (comm == nullptr) return handOut(threadError());
    const Asking asking(comm);
    if (!asking.live()) return handOut(checkHandle(comm));
    return handOut(comm->communicator->lastError().get());
  } catch (const std::bad_alloc&) {
    return "There is not enough memory.";
  }
}
