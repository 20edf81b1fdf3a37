// Where error sentences are kept: the last one of each communicator and the last one of each thread.
#pragma once

#include <mutex>
#include <string>

#include "base/status.h"

namespace fccl {

// The last error of one communicator. Any thread may read and write.
class LastError {
 public:
  void set(const Status& status);
  Status get() const;

 private:
  mutable std::mutex mutex_;
  Status status_;
};

// The last error of the calling thread.
void setThreadError(const Status& status);
Status threadError();

// The sentence of `status` as fcclGetLastError returns it: valid until the calling thread's next call of this function.
const char* handOut(const Status& status);

// "fcclInvalidArgument"
const char* resultName(fcclResult_t result);

}  // namespace fccl
