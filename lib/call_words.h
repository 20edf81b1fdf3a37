// Calls and their failures in words, for error sentences.
#pragma once

#include <string>

#include "base/status.h"
#include "kernels/host/world.h"
#include "lib/validate.h"

namespace fccl {

// What FCCL_CHECK compares: all that must be the same on every rank.
host::CallSignature signatureOf(const CheckedCall& call, uint64_t inputPlace, uint64_t outputPlace);

// Whether kernels have written into peers' slots before this call.
bool saysInputPushed(const host::CallSignature& signature);

// "AllReduce(sum, bf16, count 5)"; "AllReduceFused(RMS_NORM, bf16, 7 tokens x 2880, ...)".
std::string describe(const host::CallSignature& signature);

// What this rank's Control::ended says after `failure`: the first cause, also where a peer has told of it.
uint32_t endedBecauseOf(const host::World& world, const host::Failure& failure);

// The sentence for a communicator whose use `failure` has ended. `call`: the one that this rank is in; empty where it
// is in none, since its calls are enqueued. `firstCall`: the number of calls that the counters began with.
Status describeFailure(const host::World& world, const host::Failure& failure, const std::string& call,
                       uint32_t firstCall);

}  // namespace fccl
