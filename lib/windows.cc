// The C entry points for user buffers.
#include <algorithm>

#include "base/check.h"
#include "lib/c_boundary.h"
#include "lib/group.h"

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

Status checkRegistration(const void* buff, size_t size, const fcclWindow_t* window, int flags) {
  if (window == nullptr) return failure(fcclInvalidArgument, "window is NULL.");
  if (buff == nullptr) return failure(fcclInvalidArgument, "buff is NULL.");
  if (size == 0) return failure(fcclInvalidArgument, "size is 0.");
  if (flags != 0) return failure(fcclInvalidArgument, "flags is {:#x}; none is defined yet, it must be 0.", flags);
  return {};
}

// A wrong argument of one rank fails the call on all, so that the next registration is not paired with this one.
Status registerWindow(Communicator& communicator, void* buff, size_t size, fcclWindow_t* window, int flags) {
  if (window != nullptr) *window = nullptr;
  FCCL_TRY(communicator.usable());
  FCCL_TRY(communicator.bootstrap().agree(checkRegistration(buff, size, window, flags)));
  FCCL_TRY(agreeOn(communicator, "size", size));
  FCCL_TRY_ASSIGN(*window, communicator.openWindow(buff, size));
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
  communicator.closeWindow(window);
  return {};
}

// In a group `call` waits for its end.
template <class Call>
fcclResult_t nowOrInGroup(const char* function, fcclComm_t comm, Call&& call) {
  if (!group::open()) return call();
  return group::spoil(withCommunicator(function, comm, [&](Communicator&) -> Status {
    group::defer(comm, true, std::forward<Call>(call));
    return {};
  }));
}

Status allocate(void** ptr, size_t size, fcclDeviceType_t deviceType) {
  if (ptr == nullptr) return failure(fcclInvalidArgument, "ptr is NULL.");
  *ptr = nullptr;
  if (size == 0) return failure(fcclInvalidArgument, "size is 0.");
  fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
  config.deviceType = deviceType;
  FCCL_TRY_ASSIGN(Environment environment, Environment::read());
  // Who names the device does not mean the environment's.
  if (deviceType != fcclDeviceAuto) environment.deviceType.reset();
  FCCL_TRY_ASSIGN(Options options, resolveOptions(&config, environment, Options()));
  FCCL_TRY(chooseDevice(&options));
  const bool cuda = options.deviceType == fcclDeviceCuda;
  FCCL_TRY_ASSIGN(*ptr, cuda ? allocateCudaWindowMemory(size) : allocateWindowMemory(size));
  return {};
}

}  // namespace

fcclResult_t fcclMemAlloc(void** ptr, size_t size) {
  return boundary("fcclMemAlloc", nullptr, [&] { return allocate(ptr, size, fcclDeviceAuto); });
}

fcclResult_t fcclMemAllocOn(void** ptr, size_t size, fcclDeviceType_t deviceType) {
  return boundary("fcclMemAllocOn", nullptr, [&] { return allocate(ptr, size, deviceType); });
}

fcclResult_t fcclMemFree(void* ptr) {
  return boundary("fcclMemFree", nullptr, [&]() -> Status {
    if (ptr == nullptr || freeCudaWindowMemory(ptr)) return {};
    return freeWindowMemory(ptr);
  });
}

fcclResult_t fcclCommWindowRegister(fcclComm_t comm, void* buff, size_t size, fcclWindow_t* window, int flags) {
  if (group::open()) {
    if (window != nullptr) *window = nullptr;
    // Said at once, and then nothing of the group is carried out.
    const fcclResult_t wrong = group::spoil(withCommunicator(
        "fcclCommWindowRegister", comm, [&](Communicator&) { return checkRegistration(buff, size, window, flags); }));
    if (wrong != fcclSuccess) return wrong;
  }
  return nowOrInGroup("fcclCommWindowRegister", comm, [=] {
    return insideCommunicator("fcclCommWindowRegister", comm, [&](Communicator& communicator) {
      return registerWindow(communicator, buff, size, window, flags);
    });
  });
}

fcclResult_t fcclCommWindowDeregister(fcclComm_t comm, fcclWindow_t window) {
  return nowOrInGroup("fcclCommWindowDeregister", comm, [=] {
    return insideCommunicator("fcclCommWindowDeregister", comm,
                              [&](Communicator& communicator) { return deregisterWindow(communicator, window); });
  });
}
