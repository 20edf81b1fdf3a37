#include "tuner/needs.h"

#include "tuner/chunking.h"

namespace fccl {

Reason needCuda(const char* strategy, const Facts& facts) {
  if (facts.device == fcclDeviceCuda) return {};
  return fmt::format("{} needs GPUs, and this is a HOST communicator.", strategy);
}

Reason needOneNode(const char* strategy, const Facts& facts) {
  if (facts.group.nodes <= 1) return {};
  return fmt::format("{} needs all ranks on one node, and these {} are on {}: memory is mapped within a node only.",
                     strategy, facts.ranks, facts.group.nodes);
}

Reason needSeveralNodes(const char* strategy, const Facts& facts) {
  if (facts.group.nodes > 1) return {};
  return fmt::format("{} needs ranks on several nodes, and these are all on one.", strategy);
}

Reason needPeerAccess(const char* strategy, const Facts& facts) {
  if (facts.group.peerAccess) return {};
  return fmt::format(
      "{} needs GPUs that reach each other's memory, and those of rank {} and rank {} have no peer access.", strategy,
      facts.group.withoutPeerAccess[0], facts.group.withoutPeerAccess[1]);
}

Reason needOneNvlinkDomain(const char* strategy, const Facts& facts) {
  const GroupFacts& group = facts.group;
  if (group.link == LinkKind::kSelf || isNvlink(group.link)) return {};
  return fmt::format("{} needs all GPUs in one NVLink domain (one clique), and between some of these there is only {}.",
                     strategy, linkKindName(group.link));
}

Reason needGeneration(const char* strategy, const Facts& facts, int sm) {
  if (facts.group.sm == 0 || facts.group.sm >= sm) return {};
  return fmt::format("{} needs compute capability {}.{}, and the oldest GPU has {}.{}.", strategy, sm / 10, sm % 10,
                     facts.group.sm / 10, facts.group.sm % 10);
}

Reason needMulticast(const char* strategy, const Facts& facts) {
  if (!facts.group.multicast) return fmt::format("{} needs multicast objects, which these GPUs do not have.", strategy);
  return {};
}

Reason needNoNorm(const char* strategy, const Query& query) {
  if (!query.norm) return {};
  return fmt::format("{} does plain all-reduces only, and this pattern has a norm.", strategy);
}

Reason needPcieOnly(const char* strategy, const Facts& facts) {
  const LinkKind link = facts.group.link;
  if (facts.device == fcclDeviceCuda && link != LinkKind::kSelf && !isNvlink(link)) return {};
  return fmt::format("{} is for GPUs with PCIe only between them, and {}.", strategy,
                     facts.device != fcclDeviceCuda ? "this is a HOST communicator"
                     : link == LinkKind::kSelf
                         ? "these ranks share one"
                         : fmt::format("the slowest way between two of these is {}", linkKindName(link)));
}

Reason needBytes(const char* strategy, const Query& query, size_t least) {
  if (payloadBytes(query) >= least) return {};
  return fmt::format("{} is for {} bytes and more, and this call has {}.", strategy, least, payloadBytes(query));
}

Reason needFloats(const char* strategy, const Query& query) {
  const bool floats = query.dtype == fcclFloat32 || query.dtype == fcclFloat16 || query.dtype == fcclBfloat16;
  if (floats && query.op == fcclSum) return {};
  return fmt::format("{} does sums of fcclFloat32, fcclFloat16 and fcclBfloat16 only.", strategy);
}

Reason firstOf(std::initializer_list<Reason> reasons) {
  for (const Reason& reason : reasons) {
    if (!reason.empty()) return reason;
  }
  return {};
}

}  // namespace fccl
