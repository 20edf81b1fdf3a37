// A call of ncclAllReduce, by FCCL or by NCCL.
#pragma once

#include <cstddef>

#include "lib/shim/attached.h"

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

int byNccl(const std::shared_ptr<Attached>& at, const Call& call);
// By FCCL; where it does not take the arguments, by NCCL.
int carryOut(const std::shared_ptr<Attached>& at, const Call& call);

}  // namespace fccl::shim
