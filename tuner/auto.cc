#include "tuner/chunking.h"
#include "tuner/strategies.h"

namespace fccl {
namespace {

constexpr size_t kOneshotBytes = 32 << 10;
constexpr int64_t kTwoshotRows = 8;

// From three ranks on ONESHOT moves more bytes over the links than TWOSHOT, which waits twice.
constexpr size_t kCudaOneshotBytes = 512 << 10;

bool prefersTwoshot(const Query& query, const Facts& facts) {
  if (facts.device == fcclDeviceCuda) {
    return facts.ranks > 2 && (!query.norm || query.rows >= facts.ranks) && payloadBytes(query) > kCudaOneshotBytes;
  }
  if (facts.ranks > 2) return payloadBytes(query) > kOneshotBytes;
  if (facts.ranks == 1 || !ranksAreNear(facts)) return false;
  return query.norm ? query.rows >= kTwoshotRows : payloadBytes(query) > kOneshotBytes;
}

}  // namespace

const StrategyRow& chooseStrategy(const Query& query, const Facts& facts) {
  if (kUserBufferRow.eligible(query, facts).empty()) return kUserBufferRow;
  return prefersTwoshot(query, facts) ? kTwoshotRow : kOneshotRow;
}

}  // namespace fccl
