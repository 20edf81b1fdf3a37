#include "tuner/chunking.h"
#include "tuner/needs.h"
#include "tuner/strategies.h"

namespace fccl {
namespace {

// Payload of a chunk of all owners, before it becomes FP8.
constexpr size_t kChunkBytes = 128 << 10;
// From here on it can be worth its roundings, where PCIe is all there is between GPUs.
constexpr size_t kLeastBytes = 2 << 20;

bool hasShares(const Query& query, const Facts& facts) {
  return facts.ranks > 1 && cutForOwnersInFp8(query, facts, kChunkBytes).colsPerChunk != 0;
}

Reason eligible(const Query& query, const Facts& facts) {
  return firstOf({needFloats("LOWPRECISION", query), needMappedPeers("LOWPRECISION", facts)});
}

Reason notUnasked(const Query& query, const Facts& facts) {
  const Reason unsuited = firstOf({needPcieOnly("LOWPRECISION", facts), needBytes("LOWPRECISION", query, kLeastBytes)});
  if (unsuited.empty()) {
    return "by name only, since it rounds to FP8: this is what it is for, PCIe only and many bytes.";
  }
  return fmt::format("by name only, since it rounds to FP8, and not expected to be faster here: {}", unsuited);
}

size_t workspace(const Query& query, const Facts& facts) {
  if (facts.ranks == 1) return kOneshotRow.workspace(query, facts);
  if (facts.device == fcclDeviceCuda) return cudaWorkspace(cuda::Protocol::kLowPrecision, query, facts);
  if (!hasShares(query, facts)) return kOneshotRow.workspace(query, facts);
  return size_t{host::kChannels} * host::kRingSlots * (facts.slotBytes + host::kSlotPad);
}

Plan plan(const Query& query, const Facts& facts) {
  const bool onCuda = facts.device == fcclDeviceCuda && facts.ranks > 1;
  if (onCuda) return planOnCuda(fcclStrategyLowPrecision, host::Protocol::kLowPrecision);
  Plan plan;
  if (!hasShares(query, facts)) {
    plan = kOneshotRow.plan(query, facts);
    plan.strategy = fcclStrategyLowPrecision;
    return plan;
  }
  plan.strategy = fcclStrategyLowPrecision;
  plan.protocol = host::Protocol::kLowPrecision;
  plan.wire = host::Wire::kFlags;
  plan.shape = cutForOwnersInFp8(query, facts, kChunkBytes);
  plan.shape.streamOutput = streamsOutput(query, facts);
  plan.rowScratchBytes = rowScratchBytes(query);
  plan.kernel = host::findKernel(facts.simd, plan.protocol, plan.wire, query.dtype, query.op, query.norm, facts.ranks);
  return plan;
}

}  // namespace

const StrategyRow kLowPrecisionRow = {fcclStrategyLowPrecision,
                                      "LOWPRECISION",
                                      "as TWOSHOT, with FP8 (e4m3, block scales) on the wire and sums in fp32; by name "
                                      "only, since it rounds; few rows: as ONESHOT",
                                      eligible,
                                      workspace,
                                      plan,
                                      notUnasked};

}  // namespace fccl
