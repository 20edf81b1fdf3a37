// What tests may reach behind the C API. Not exported: for programs that link the library's objects.
#pragma once

#include <cstdint>

#include "fccl.h"
#include "kernels/host/world.h"
#include "lib/communicator.h"

namespace fccl::testing {

// The steps of a communicator's creation that tests let fail.
enum class CreationStep { kNone, kRecords, kMemory, kFacts };

// Read by every communicator that is created, not locked: set it while none is being created.
struct TestOptions {
  uint32_t firstSequence = 0;  // chunk, barrier and call counters begin here
  CreationStep failAt = CreationStep::kNone;
  int failRank = 0;  // on this rank only
  int slowness = 1;  // how many times longer the first call of a size may be measured
};
TestOptions& testOptions();

// comm must be a live communicator.
Communicator& communicatorOf(fcclComm_t comm);
inline host::World& worldOf(fcclComm_t comm) { return communicatorOf(comm).world(); }

}  // namespace fccl::testing
