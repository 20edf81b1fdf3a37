// The groups of the calling thread, and the places that calls have among each other, in them and outside.
#pragma once

#include <memory>

#include "lib/shim/all_reduce.h"

namespace fccl::shim {

// ncclGroupStart, ncclGroupEnd, ncclGroupSimulateEnd.
int startGroup();
int endGroup();
int simulateGroupEnd(void* info);
bool inGroup();

// In a group: carried out at its end, before what NCCL was given.
void defer(const std::shared_ptr<Attached>& at, const Call& call);
// In a group: NCCL was given something for `stream`, which it enqueues at the group's end.
void noteNcclCall(const std::shared_ptr<Attached>& at, void* stream);

// `call` gives NCCL something to enqueue on `stream`: it has its place among FCCL's calls.
template <class CallNccl>
int inOrder(const std::shared_ptr<Attached>& at, void* stream, CallNccl&& call) {
  if (at == nullptr || !at->serves()) return call();
  if (inGroup()) {
    noteNcclCall(at, stream);
    return call();
  }
  at->before(stream);
  const int code = call();
  at->after(stream);
  return code;
}

}  // namespace fccl::shim
