#pragma once

#include <memory>

#include "lib/bench.h"

namespace fccl {

// Waits for all work on the GPU, so that the calls to come follow those of the caller's. fcclInvalidUsage while a
// stream of the GPU is captured.
Result<std::unique_ptr<Bench>> makeCudaBench(int device);

}  // namespace fccl
