// Whether symmetric memory is what it should be: one memory, seen by all ranks.
#pragma once

#include "transport/symmetric_memory.h"

namespace fccl {

// Collective, on memory that nobody uses yet and that the CPU can read; leaves it zeroed. Every rank writes a pattern
// into every other's part and looks at what it reads there itself and at what the others have written into its own: up
// to 64 KiB for each pair and direction. fcclSystemError on all ranks names a pair whose data did not arrive.
Status checkPaths(Bootstrap& bootstrap, const SymmetricMemory& memory);

}  // namespace fccl
