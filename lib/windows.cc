// The C entry points for user buffers.
#include <algorithm>

#include "base/check.h"
#include "lib/c_boundary.h"

using namespace fccl;

namespace {

// A value that must be the same on every rank: tells everybody's, and fails on every rank where they differ.
Status agreeOn(Communicator& communicator, const char* what, uint64_t mine) {
  FCCL_TRY_ASSIGN(const std::vector<uint64_t> all, communicator.bootstrap().exchange(mine));
  const auto other = std::find_if(all.begin(), all.end(), [&](uint64_t value) { return value != all.front(); });
  if (other == all.end()) return {};
  return failure(fcclInvalidUsage, "{} is {} on rank 0 and {} on rank {}; it must be the same on every rank.", what,
                 all.front(), *other, other - all.begin());
}

Status registerWindow(Communicator& communicator, void* buff, size_t size, fcclWindow_t* window, int flags) {
  if (window == nullptr) return failure(fcclInvalidArgument, "window is NULL.");
  *window = nullptr;
  if (buff == nullptr) return failure(fcclInvalidArgument, "buff is NULL.");
  if (size == 0) return failure(fcclInvalidArgument, "size is 0.");
  if (flags != 0) return failure(fcclInvalidArgument, "flags is {:#x}; none is defined yet, it must be 0.", flags);
  FCCL_TRY(communicator.usable());
  FCCL_TRY(agreeOn(communicator, "size", size));
  HostMemoryOptions options;
  options.provider = communicator.options().sharedMemory;
  options.timeout = communicator.options().initTimeout();
  FCCL_TRY_ASSIGN(std::unique_ptr<SymmetricMemory> memory,
                  mapHostWindow(communicator.bootstrap(), buff, size, options));
  *window = communicator.windows().add(std::move(memory), buff, size, communicator.rank(), communicator.ranks());
  return {};
}

Status deregisterWindow(Communicator& communicator, fcclWindow_t window) {
  if (window == nullptr) return failure(fcclInvalidArgument, "window is NULL.");
  const fcclWindow* known = communicator.windows().find(window);
  if (known == nullptr) {
    return failure(fcclInvalidArgument, "window is {}, which is no window of this communicator (any more).",
                   static_cast<const void*>(window));
  }
  // When everybody has told its window, nobody is inside a collective that uses it.
  FCCL_TRY(agreeOn(communicator, "The number of the window", known->number));
  communicator.windows().remove(window);
  return {};
}

}  // namespace

fcclResult_t fcclMemAlloc(void** ptr, size_t size) {
  return boundary("fcclMemAlloc", nullptr, [&]() -> Status {
    if (ptr == nullptr) return failure(fcclInvalidArgument, "ptr is NULL.");
    *ptr = nullptr;
    if (size == 0) return failure(fcclInvalidArgument, "size is 0.");
    FCCL_TRY_ASSIGN(*ptr, allocateWindowMemory(size));
    return {};
  });
}

fcclResult_t fcclMemFree(void* ptr) {
  return boundary("fcclMemFree", nullptr, [&] { return ptr == nullptr ? Status() : freeWindowMemory(ptr); });
}

fcclResult_t fcclCommWindowRegister(fcclComm_t comm, void* buff, size_t size, fcclWindow_t* window, int flags) {
  return insideCommunicator("fcclCommWindowRegister", comm, [&](Communicator& communicator) {
    return registerWindow(communicator, buff, size, window, flags);
  });
}

fcclResult_t fcclCommWindowDeregister(fcclComm_t comm, fcclWindow_t window) {
  return insideCommunicator("fcclCommWindowDeregister", comm,
                            [&](Communicator& communicator) { return deregisterWindow(communicator, window); });
}
