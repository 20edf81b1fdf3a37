#include <algorithm>

#include "tuner/chunking.h"
#include "tuner/needs.h"
#include "tuner/strategies.h"

namespace fccl {
namespace {

// Two ranks that share a cache: Lamport's payload is its own flag, and costs least up to here.
constexpr size_t kNearLamportBytes = 32 << 10;
// Two ranks that do not: from here on staging past the caches is cheaper, and then output past the caches.
constexpr size_t kFarFlagsBytes = 16 << 10;
// With an epilogue the same from here on; up to here Lamport's earlier arrival counts for more.
constexpr size_t kFarNormFlagsBytes = 64 << 10;
constexpr size_t kFarStreamOutputBytes = 128 << 10;
constexpr size_t kLamportChunkBytes = 16 << 10;
constexpr size_t kFlagsChunkBytes = 128 << 10;
constexpr size_t kNormChunkBytes = 16 << 10;

bool takesLamport(const Query& query, const Facts& facts) {
  if (facts.ranks != 2) return false;
  const size_t bytes = payloadBytes(query);
  const size_t farFlagsBytes = query.norm ? kFarNormFlagsBytes : kFarFlagsBytes;
  if (ranksAreNear(facts) ? bytes > kNearLamportBytes : bytes >= farFlagsBytes) return false;
  return host::findKernel(facts.simd, host::Protocol::kOneshot, host::Wire::kLamport, query.dtype, query.op, query.norm,
                          facts.ranks) != nullptr;
}

Reason eligible(const Query&, const Facts& facts) { return needMappedPeers("ONESHOT", facts); }

size_t workspace(const Query& query, const Facts& facts) {
  if (facts.device == fcclDeviceCuda) return cudaWorkspace(cuda::Protocol::kOneshot, query, facts);
  if (takesLamport(query, facts)) {
    return static_cast<size_t>(facts.ranks) * host::kRingSlots * (facts.lamportSlotBytes + host::kSlotPad);
  }
  return host::kRingSlots * (facts.slotBytes + host::kSlotPad);
}

Plan plan(const Query& query, const Facts& facts) {
  if (facts.device == fcclDeviceCuda) return planOnCuda(fcclStrategyOneshot, host::Protocol::kOneshot);
  return planOneshot(query, facts, takesLamport(query, facts) ? host::Wire::kLamport : host::Wire::kFlags);
}

}  // namespace

const StrategyRow kOneshotRow = {fcclStrategyOneshot,
                                 "ONESHOT",
                                 "every rank gets every rank's data and reduces all of it: pushed into the peers' "
                                 "slots (Lamport) or staged once and "
                                 "pulled (flags)",
                                 eligible,
                                 workspace,
                                 plan};

Plan planOneshot(const Query& query, const Facts& facts, host::Wire wire) {
  Plan plan;
  plan.strategy = fcclStrategyOneshot;
  plan.protocol = host::Protocol::kOneshot;
  plan.wire = wire;
  plan.rowScratchBytes = rowScratchBytes(query);
  plan.kernel = host::findKernel(facts.simd, plan.protocol, wire, query.dtype, query.op, query.norm, facts.ranks);
  if (wire == host::Wire::kLamport) {
    plan.shape = cutForAll(query, facts.lamportSlotBytes, kLamportChunkBytes);
    plan.shape.streamOutput = streamsOutput(query, facts);
    return plan;
  }
  plan.shape = cutForAll(query, facts.slotBytes, query.norm ? kNormChunkBytes : kFlagsChunkBytes);
  const bool far = facts.ranks == 2 && !ranksAreNear(facts);
  const size_t bytes = payloadBytes(query);
  plan.shape.streamStaging = far && bytes >= kFarFlagsBytes;
  const size_t streamOutputBytes = query.norm ? kFarNormFlagsBytes : kFarStreamOutputBytes;
  plan.shape.streamOutput = streamsOutput(query, facts) || (far && query.outputsAligned && bytes >= streamOutputBytes);
  return plan;
}

bool streamsOutput(const Query& query, const Facts& facts) {
  return query.outputsAligned && payloadBytes(query) > facts.cacheBytes / 2;
}

}  // namespace fccl
