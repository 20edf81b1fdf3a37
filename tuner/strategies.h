// The rows of the registry, one file each.
#pragma once

#include "tuner/registry.h"

namespace fccl {

extern const StrategyRow kOneshotRow;
extern const StrategyRow kTwoshotRow;
extern const StrategyRow kMinLatencyRow;
extern const StrategyRow kUserBufferRow;
extern const StrategyRow kNcclRow;
extern const StrategyRow kNcclSymmetricRow;
extern const StrategyRow kLowPrecisionRow;

// The plans of ONESHOT and TWOSHOT over a given wire. kernel is NULL where that wire has none for the query, and where
// TWOSHOT cannot give every owner a share.
Plan planOneshot(const Query& query, const Facts& facts, host::Wire wire);
Plan planTwoshot(const Query& query, const Facts& facts, host::Wire wire);

inline bool isNccl(fcclStrategy_t strategy) {
  return strategy == fcclStrategyNccl || strategy == fcclStrategyNcclSymmetric;
}

// Why the row cannot do the query, or empty: NCCL's rows need no kernels of FCCL's.
inline Reason cannot(const StrategyRow& row, const Query& query, const Facts& facts) {
  Reason noKernel = isNccl(row.id) ? Reason() : notOnDevice(query, facts);
  return noKernel.empty() ? row.eligible(query, facts) : noKernel;
}

// From so many bytes on a buffer in no window is worth the way through one.
size_t ncclStagingBytes(int ranks, size_t elementBytes);

// ONESHOT and TWOSHOT on CUDA.
size_t cudaWorkspace(cuda::Protocol protocol, const Query& query, const Facts& facts);
Plan planOnCuda(fcclStrategy_t strategy, host::Protocol protocol);

// Below this one-way time of a flag, two ranks share a cache.
constexpr double kNearNanoseconds = 150;
inline bool ranksAreNear(const Facts& facts) { return facts.flagNanoseconds < kNearNanoseconds; }

// Outputs are written past the caches where they exceed half of this rank's part and may be (their alignment).
bool streamsOutput(const Query& query, const Facts& facts);

}  // namespace fccl
