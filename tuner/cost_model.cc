#include "tuner/cost_model.h"

#include <algorithm>
#include <string_view>

#include "tuner/chunking.h"

namespace fccl {
namespace {

// Fitted by hand to times of 2x H200 and of 2, 4 and 8 ranks that share one H200, bf16, hidden 8192 (docs/
// performance.md). `linkShare`, `memoryShare`: of the topology's rates that the strategy gets.
struct Constants {
  double launch = 0;  // microseconds without the link's latency
  int hops = 0;       // one-way times of a flag that follow each other
  double linkShare = 1;
  double memoryShare = 1;
};
constexpr Constants kOneshot = {1.55, 1, 0.95, 1.0};
constexpr Constants kTwoshot = {6.8, 2, 0.7, 0.8};
constexpr Constants kUserBuffers = {4.3, 2, 0.95, 1.0};
constexpr Constants kNccl = {6.3, 1, 0.75, 1.0};

constexpr double kNorm = 0.6;
constexpr double kFp8 = 0.07;
constexpr double kNvfp4 = 0.3;
constexpr double kEpilogueKernel = 2.0;
constexpr double kPerPeer = 0.1;         // beyond the first
constexpr double kPerSharingRank = 0.5;  // beyond two on one GPU
// Two ranks that share a GPU find some of each other's bytes in its cache; more of them disturb each other.
constexpr double kMemoryOfTwo = 1.2;
constexpr double kMemoryOfMany = 0.88;

// One-way time of a flag where the topology has none: NVLink as measured on H200, the others not measured.
double latencyMicroseconds(const GroupFacts& group) {
  if (group.link == LinkKind::kSelf) return 0;
  if (group.latencyNanoseconds > 0) return group.latencyNanoseconds / 1000;
  switch (group.link) {
    case LinkKind::kNvswitch:
    case LinkKind::kNvlink: return 0.605;
    case LinkKind::kFabric: return 1.0;
    case LinkKind::kPcie: return 1.5;
    case LinkKind::kSystem: return 2.0;
    default: return 5.0;
  }
}

// Bytes in units of the payload.
struct Volume {
  double link = 0;    // of one rank, one way
  double memory = 0;  // of one rank, read and written
};

double outputs(const Query& query) {
  const auto width = static_cast<double>(host::dtypeBytes(query.dtype));
  if (query.quant == QuantKind::kFp8) return 1 / width;
  if (query.quant == QuantKind::kNvfp4) return (0.5 + 1.0 / 16) / width;
  return 1;
}
// Output, and with a norm the residual, read and written.
double epilogue(const Query& query) { return outputs(query) + (query.norm ? 2 : 0); }

// Own input read; slots written, read and armed again.
Volume oneshotVolume(const Query& query, double peers) { return {peers, 1 + 3 * peers + epilogue(query)}; }
Volume twoshotVolume(const Query& query, double peers) {
  const double part = peers / (peers + 1);
  return {2 * part, 1 + 6 * part + epilogue(query)};
}
Volume windowVolume(const Query& query, double peers) {
  if (query.norm) return {peers, peers + 1 + epilogue(query)};
  return {2 * peers / (peers + 1), 2};
}
Volume ncclVolume(double peers) {
  const double part = peers / (peers + 1);
  return {2 * part, 2 + 2 * part};
}

std::optional<Cost> cost(const Constants& constants, const Volume& volume, const Query& query, const Facts& facts) {
  const GroupFacts& group = facts.group;
  const bool alone = group.link == LinkKind::kSelf;
  if (group.memoryGigabytesPerSecond <= 0 || (!alone && group.gigabytesPerSecond <= 0)) return std::nullopt;
  const auto payload = static_cast<double>(payloadBytes(query));
  const int sharing = std::max(1, group.ranksPerGpu);
  Cost result;
  result.fixedMicroseconds = constants.launch + constants.hops * latencyMicroseconds(group) +
                             kPerPeer * std::max(0, facts.ranks - 2) + kPerSharingRank * std::max(0, sharing - 2);
  if (query.norm) result.fixedMicroseconds += kNorm;
  if (query.quant == QuantKind::kFp8) result.fixedMicroseconds += kFp8;
  if (query.quant == QuantKind::kNvfp4) result.fixedMicroseconds += kNvfp4;
  // 1 GB/s is 1000 bytes in a microsecond. All ranks of a GPU send over its links.
  if (!alone) {
    result.linkMicroseconds = payload * volume.link * sharing / (group.gigabytesPerSecond * 1e3 * constants.linkShare);
  }
  const double memoryShare = constants.memoryShare * (sharing == 1 ? 1.0 : sharing == 2 ? kMemoryOfTwo : kMemoryOfMany);
  result.memoryMicroseconds = payload * volume.memory * sharing / (group.memoryGigabytesPerSecond * 1e3 * memoryShare);
  return result;
}

}  // namespace

std::optional<Cost> predict(const char* strategy, const Query& query, const Facts& facts) {
  if (facts.device != fcclDeviceCuda) return std::nullopt;
  const std::string_view name = strategy;
  const double peers = facts.ranks - 1;
  if (name == "ONESHOT") return cost(kOneshot, oneshotVolume(query, peers), query, facts);
  if (name == "TWOSHOT") return cost(kTwoshot, twoshotVolume(query, peers), query, facts);
  if (name == "UB") return cost(kUserBuffers, windowVolume(query, peers), query, facts);
  if (name == "NCCL") {
    std::optional<Cost> result = cost(kNccl, ncclVolume(peers), query, facts);
    if (!result || !query.norm) return result;
    // The epilogue's kernel comes after the sum, which it reads.
    const Volume after = {0, 1 + epilogue(query)};
    const std::optional<Cost> second = cost({kEpilogueKernel - kNorm}, after, query, facts);
    result->fixedMicroseconds += second->memoryMicroseconds + kEpilogueKernel - kNorm;
    return result;
  }
  return std::nullopt;
}

}  // namespace fccl
