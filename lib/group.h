// fcclGroupStart and fcclGroupEnd: calls that one thread makes for several ranks, carried out together at the end of
// the group, where no rank waits for another that is yet to be called for.
#pragma once

#include <functional>

#include "fccl.h"

namespace fccl::group {

// How deep the calling thread is in groups. Not in the static block of thread-local memory, whose few spare bytes do
// not hold what the CUDA runtime has beside it: a program that loads the library while it runs (Python) would be
// refused.
extern constinit thread_local int depth __attribute__((tls_model("local-dynamic")));
inline bool open() { return depth > 0; }

// Keeps a call for the end of the group. `comm`: whose it is, NULL for one that has none yet; calls of one communicator
// stay in order. `waits`: the call returns only when other ranks have made theirs.
void defer(fcclComm_t comm, bool waits, std::function<fcclResult_t()> call);

// Where `result`, of a call inside the group, is an error, nothing is carried out at the end of the group. Returns it.
fcclResult_t spoil(fcclResult_t result);

}  // namespace fccl::group
