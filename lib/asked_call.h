// A call that is asked about and not made: fcclExplain and fccl-info.
#pragma once

#include "base/status.h"
#include "tuner/registry.h"

namespace fccl {

// What the caller's struct asks, checked.
Result<Query> queryOf(const fcclQuery_t& asked);

// "RESIDUAL_RMS_NORM, 64 tokens x 8192 of bf16, 8 ranks: 1048576 bytes per rank".
std::string describeCall(const fcclQuery_t& asked, int ranks);

}  // namespace fccl
