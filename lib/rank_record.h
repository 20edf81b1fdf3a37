// What ranks tell each other before they share memory, and whether it fits together.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "lib/config.h"
#include "transport/cuda_device.h"
#include "transport/topology.h"

namespace fccl {

// One bit per processor that a rank may run on.
using CoreMask = std::array<uint64_t, 64>;

// Fixed size, no pointers: it travels as bytes.
struct RankRecord {
  int32_t version = 0;
  int32_t deviceType = 0;
  int32_t strategy = 0;
  int32_t checkCalls = 0;
  int32_t sharedMemory = 0;
  int32_t slotBytes = 0;
  int32_t simd = 0;
  int32_t allowSharedDevice = 0;
  int32_t cudaWorkspaceBytes = 0;
  int32_t cudaMemory = 0;
  int32_t nccl = 0;
  int32_t tuningFile = 0;         // whether the rank has one; may differ
  int32_t cudaGeneration = 0;     // compute capability, 90 for 9.0; may differ
  CudaUuid cudaUuid{};            // of the rank's GPU; HOST: zero
  uint64_t cacheBytes = 0;        // of the last-level cache; may differ
  uint64_t coresPerCache = 0;     // may differ
  std::array<char, 64> nodeId{};  // FCCL_HOSTID, else the boot id; empty where unknown
  CoreMask cores{};               // empty where unknown; may differ
};

// Fails where the rank's GPU does not tell who it is.
Result<RankRecord> makeRankRecord(const Options& options);

// Everybody has the same records, so everybody comes to the same result: fcclInvalidArgument names the field, two ranks
// and their values; fcclInvalidUsage two ranks that are on one GPU without allowSharedDevice.
Status agreeOnRecords(std::span<const RankRecord> records);

// How a rank stands among those that may use the same cores.
struct Neighbours {
  int index = 0;
  int count = 1;
};
Neighbours sameCores(std::span<const RankRecord> records, int rank);

// Cores that at least one rank may use; at least 1.
int coresOfAll(std::span<const RankRecord> records);

// The most ranks that one GPU has; 1 on HOST.
int ranksPerDevice(std::span<const RankRecord> records);

// What the ranks that have met have in common: of one node, with peer access, which is tried when memory is shared.
GroupFacts groupOf(std::span<const RankRecord> records);

// Adds what a topology says of the links between the ranks' GPUs, found by uuid. A topology that has no uuids is one of
// a file: its GPUs are taken in order. Nothing is added where a GPU is not in it.
void addLinks(const Topology& topology, std::span<const RankRecord> records, GroupFacts* group);

// A rank's part of the last-level cache, the smallest of all ranks.
size_t cacheBytesPerRank(std::span<const RankRecord> records);

}  // namespace fccl
