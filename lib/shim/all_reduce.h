// A call of ncclAllReduce, by FCCL or by NCCL.
#pragma once

#include <cstddef>
#include <optional>

#include "lib/shim/attached.h"
#include "lib/shim/last_error.h"

namespace fccl::shim {

struct Call {
  const void* in;
  void* out;
  size_t count;
  int dtype;
  int op;
  void* ncclComm;
  void* stream;
};

// Nothing: FCCL does not take these arguments, and has enqueued nothing; NCCL may. Not what meets an abort: NCCL's
// communicator goes as well. On any thread.
std::optional<Outcome> byFccl(Attached& at, const Call& call);
int byNccl(const std::shared_ptr<Attached>& at, const Call& call);

}  // namespace fccl::shim
