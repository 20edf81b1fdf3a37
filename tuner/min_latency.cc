#include "tuner/chunking.h"
#include "tuner/needs.h"
#include "tuner/strategies.h"

namespace fccl {
namespace {

constexpr int64_t kOneshotRows = 128;
constexpr size_t kOneshotBytes = 256 << 10;

const StrategyRow& chosen(const Query& query, const Facts& facts) {
  const bool small = query.norm ? query.rows <= kOneshotRows : payloadBytes(query) <= kOneshotBytes;
  return small || query.cols < facts.ranks ? kOneshotRow : kTwoshotRow;
}

Reason eligible(const Query&, const Facts& facts) { return needMappedPeers("MIN_LATENCY", facts); }

size_t workspace(const Query& query, const Facts& facts) { return chosen(query, facts).workspace(query, facts); }

Plan plan(const Query& query, const Facts& facts) {
  Plan plan = chosen(query, facts).plan(query, facts);
  plan.strategy = fcclStrategyMinLatency;
  return plan;
}

}  // namespace

const StrategyRow kMinLatencyRow = {
    fcclStrategyMinLatency,
    "MIN_LATENCY",
    "ONESHOT up to 128 rows (without norm: 256 KiB), or with fewer columns than ranks; TWOSHOT above",
    eligible,
    workspace,
    plan};

}  // namespace fccl
