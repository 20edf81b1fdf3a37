#include "lib/errors.h"

namespace fccl {
namespace {

thread_local Status lastOfThread;
thread_local Status handedOut;

}  // namespace

void LastError::set(const Status& status) {
  std::lock_guard lock(mutex_);
  status_ = status;
}

Status LastError::get() const {
  std::lock_guard lock(mutex_);
  return status_;
}

void setThreadError(const Status& status) { lastOfThread = status; }

Status threadError() { return lastOfThread; }

const char* handOut(const Status& status) {
  handedOut = status;
  return handedOut.ok() ? "no error" : handedOut.message().c_str();
}

const char* resultName(fcclResult_t result) {
  switch (result) {
    case fcclSuccess: return "fcclSuccess";
    case fcclUnhandledCudaError: return "fcclUnhandledCudaError";
    case fcclSystemError: return "fcclSystemError";
    case fcclInternalError: return "fcclInternalError";
    case fcclInvalidArgument: return "fcclInvalidArgument";
    case fcclInvalidUsage: return "fcclInvalidUsage";
    case fcclRemoteError: return "fcclRemoteError";
    case fcclInProgress: return "fcclInProgress";
  }
  return "unknown fcclResult_t";
}

}  // namespace fccl
