#include "tuner/chunking.h"
#include "tuner/needs.h"
#include "tuner/strategies.h"

namespace fccl {
namespace {

// Of all owners together.
constexpr size_t kChunkBytes = 128 << 10;
constexpr size_t kLamportChunkBytes = 32 << 10;

// With one rank, with too little for every owner to get a share, or where the shares do not fit a slot together,
// ONESHOT's plan gives the same bits.
bool hasShares(const Query& query, const Facts& facts) {
  return facts.ranks > 1 && cutForOwners(query, facts, host::Wire::kFlags, kChunkBytes).colsPerChunk != 0;
}

Reason eligible(const Query& query, const Facts& facts) {
  if (Reason reason = needMappedPeers("TWOSHOT", facts); !reason.empty()) return reason;
  const bool onHost = facts.device == fcclDeviceHost;
  if (!query.residualSharded || !onHost || facts.ranks == 1 || hasShares(query, facts)) return {};
  return fmt::format(
      "TWOSHOT with residualSharded needs slots that hold a row of {} columns and what becomes of it, and these have "
      "{} "
      "bytes; make them larger with slotBytes (FCCL_SLOT_BYTES).",
      query.cols, facts.slotBytes);
}

size_t workspace(const Query& query, const Facts& facts) {
  if (facts.device == fcclDeviceCuda) return cudaWorkspace(cuda::Protocol::kTwoshot, query, facts);
  if (!hasShares(query, facts)) return kOneshotRow.workspace(query, facts);
  return size_t{host::kChannels} * host::kRingSlots * (facts.slotBytes + host::kSlotPad);
}

Plan plan(const Query& query, const Facts& facts) {
  if (facts.device == fcclDeviceCuda) return planOnCuda(fcclStrategyTwoshot, host::Protocol::kTwoshot);
  if (hasShares(query, facts)) return planTwoshot(query, facts, host::Wire::kFlags);
  Plan plan = kOneshotRow.plan(query, facts);
  plan.strategy = fcclStrategyTwoshot;
  return plan;
}

}  // namespace

const StrategyRow kTwoshotRow = {fcclStrategyTwoshot,
                                 "TWOSHOT",
                                 "every rank reduces its share of the rows and does their epilogue, then the outputs "
                                 "are gathered; few rows: as ONESHOT",
                                 eligible,
                                 workspace,
                                 plan};

Plan planTwoshot(const Query& query, const Facts& facts, host::Wire wire) {
  Plan plan;
  plan.strategy = fcclStrategyTwoshot;
  plan.protocol = host::Protocol::kTwoshot;
  plan.wire = wire;
  plan.shape = cutForOwners(query, facts, wire, wire == host::Wire::kLamport ? kLamportChunkBytes : kChunkBytes);
  plan.shape.streamOutput = streamsOutput(query, facts);
  plan.rowScratchBytes = rowScratchBytes(query);
  const bool gathersSums = wire == host::Wire::kLamport;  // and every rank adds the residual
  if (plan.shape.colsPerChunk != 0 && !(gathersSums && query.residualSharded)) {
    plan.kernel = host::findKernel(facts.simd, plan.protocol, wire, query.dtype, query.op, query.norm, facts.ranks);
  }
  return plan;
}

}  // namespace fccl
