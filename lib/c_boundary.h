// The border to C: every entry point runs its body in here. No exception leaves, and an error is remembered for
// fcclGetLastError.
#pragma once

#include <exception>
#include <new>
#include <system_error>

#include "base/log.h"
#include "lib/errors.h"
#include "lib/handle.h"

namespace fccl {

// `lastError`: of the communicator, NULL where there is none. Never throws: where there is no memory for the sentence,
// the code alone is returned.
[[gnu::cold]] inline fcclResult_t recordError(const char* function, const Status& status,
                                              LastError* lastError) noexcept {
  try {
    const Status named = failure(status.code(), "{}: {}", function, status.message());
    FCCL_WARN("{}", named.message());
    setThreadError(named);
    if (lastError != nullptr) lastError->set(named);
  } catch (const std::exception&) {
    return status.code();
  }
  return status.code();
}

// body() -> Status, without a communicator or before it is known to be one.
template <class Body>
fcclResult_t boundary(const char* function, LastError* lastError, Body&& body) noexcept {
  try {
    const Status status = body();
    if (status.ok()) [[likely]]
      return fcclSuccess;
    return recordError(function, status, lastError);
  } catch (const std::bad_alloc&) {
    static const Status noMemory(fcclSystemError, "There is not enough memory.");
    return recordError(function, noMemory, lastError);
  } catch (const std::system_error& error) {
    return recordError(function, Status(fcclSystemError, error.what()), lastError);
  } catch (const std::exception& error) {
    return recordError(function, Status(fcclInternalError, error.what()), lastError);
  } catch (...) {
    return recordError(function, Status(fcclInternalError, "An unknown exception was thrown."), lastError);
  }
}

// body(Communicator&) -> Status, for getters that any thread may call at any time.
template <class Body>
fcclResult_t withCommunicator(const char* function, fcclComm_t comm, Body&& body) noexcept {
  if (comm == nullptr) [[unlikely]]
    return boundary(function, nullptr, [&] { return checkHandle(comm); });
  const Asking asking(comm);
  if (!asking.live()) [[unlikely]]
    return boundary(function, nullptr, [&] { return checkHandle(comm); });
  Communicator& communicator = *comm->communicator;
  return boundary(function, &communicator.lastError(), [&] { return body(communicator); });
}

// body(Communicator&) -> Status, for calls that only one thread may be in.
template <class Body>
fcclResult_t insideCommunicator(const char* function, fcclComm_t comm, Body&& body) noexcept {
  if (comm == nullptr || comm->magic.load(std::memory_order_relaxed) != fcclComm::kLive) [[unlikely]] {
    return boundary(function, nullptr, [&] { return checkHandle(comm); });
  }
  const Inside inside(comm);
  if (!inside.entered()) [[unlikely]] {
    // Not recorded at the communicator: the other thread may be about to free it.
    return boundary(function, nullptr, [] { return anotherThreadInside(); });
  }
  Communicator& communicator = *comm->communicator;
  return boundary(function, &communicator.lastError(), [&] { return body(communicator); });
}

}  // namespace fccl
