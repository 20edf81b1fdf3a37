// Forming several communicators together.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "lib/communicator.h"

namespace fccl {

// fcclInvalidArgument for a rank count or rank that cannot be.
Status checkRanks(int ranks, int rank);

// All ranks of one group in this process, each made on a thread of its own. All or none. On CUDA rank r is on GPU r,
// unless `options` name one.
Result<std::vector<std::unique_ptr<Communicator>>> formInOneProcess(int ranks, const Options& options);

Status checkColor(int color);

// Collective over `parent`: this rank's communicator in the group of its color, NULL for FCCL_SPLIT_NOCOLOR. `wish` are
// the options, or why this rank has none, which fails the split on every rank.
Result<std::unique_ptr<Communicator>> split(Communicator& parent, int color, int key, const Result<Options>& wish);

}  // namespace fccl
