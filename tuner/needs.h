// What strategies need of the ranks' machines and of the call, each need with the one sentence that says what is
// missing. Rows put their reasons together from these, so that errors, logs, explain, docs and tests say the same.
#pragma once

#include <initializer_list>

#include "tuner/registry.h"

namespace fccl {

// Each is empty where the need is met; what is not known counts as met.
Reason needCuda(const char* strategy, const Facts& facts);
Reason needOneNode(const char* strategy, const Facts& facts);
Reason needSeveralNodes(const char* strategy, const Facts& facts);
Reason needPeerAccess(const char* strategy, const Facts& facts);
// All GPUs in one domain of NVLink: of one node, or in one clique of a fabric that spans nodes.
Reason needOneNvlinkDomain(const char* strategy, const Facts& facts);
Reason needGeneration(const char* strategy, const Facts& facts, int sm);
Reason needMulticast(const char* strategy, const Facts& facts);
Reason needNoNorm(const char* strategy, const Query& query);
// Of GPUs, that the slowest way between two of them is no NVLink, and no memory that they share.
Reason needPcieOnly(const char* strategy, const Facts& facts);
// Payload of the call.
Reason needBytes(const char* strategy, const Query& query, size_t least);
Reason needFloats(const char* strategy, const Query& query);

// The first that is not empty.
Reason firstOf(std::initializer_list<Reason> reasons);

// Both needs of the strategies that read and write peers' memory as it is mapped on one node.
inline Reason needMappedPeers(const char* strategy, const Facts& facts) {
  return firstOf({needOneNode(strategy, facts), needPeerAccess(strategy, facts)});
}

}  // namespace fccl
