#include "tuner/chunking.h"
#include "tuner/strategies.h"

namespace fccl {
namespace {

constexpr size_t kOneshotBytes = 32 << 10;
constexpr int64_t kTwoshotRows = 8;

// From three ranks on ONESHOT moves more bytes over the links than TWOSHOT, which waits twice.
// Measured with ranks that share one H200 (docs/performance.md); four and eight GPUs may say otherwise.
constexpr int kFewRanks = 4;
constexpr size_t kCudaOneshotBytesFew = 2 << 20;
constexpr size_t kCudaOneshotBytesMany = 1 << 20;

// User buffers save the staging and pay for two barriers. Measured on CUDA with two ranks that share one H200; with a
// GPU for each rank, where the link decides, they have not been measured, and are taken by name only.
constexpr size_t kCudaWindowBytes = 4 << 20;
constexpr size_t kCudaWindowBytesNorm = 8 << 20;

bool prefersWindows(const Query& query, const Facts& facts) {
  if (!kUserBufferRow.eligible(query, facts).empty()) return false;
  if (facts.device == fcclDeviceHost) return true;
  const size_t least = query.norm ? kCudaWindowBytesNorm : kCudaWindowBytes;
  return facts.ranks == 2 && facts.ranksPerDevice == 2 && payloadBytes(query) >= least;
}

bool prefersTwoshot(const Query& query, const Facts& facts) {
  if (facts.device == fcclDeviceCuda) {
    const size_t most = facts.ranks <= kFewRanks ? kCudaOneshotBytesFew : kCudaOneshotBytesMany;
    return facts.ranks > 2 && (!query.norm || query.rows >= facts.ranks) && payloadBytes(query) > most;
  }
  if (facts.ranks > 2) return payloadBytes(query) > kOneshotBytes;
  if (facts.ranks == 1 || !ranksAreNear(facts)) return false;
  return query.norm ? query.rows >= kTwoshotRows : payloadBytes(query) > kOneshotBytes;
}

}  // namespace

const StrategyRow& chooseStrategy(const Query& query, const Facts& facts) {
  if (prefersWindows(query, facts)) return kUserBufferRow;
  return prefersTwoshot(query, facts) ? kTwoshotRow : kOneshotRow;
}

}  // namespace fccl
