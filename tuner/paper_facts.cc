#include "tuner/paper_facts.h"

#include <algorithm>

#include "kernels/host/world.h"

namespace fccl {
namespace {

constexpr size_t kSlotBytes = 256 << 10;
constexpr double kFarFlagNanoseconds = 250;
constexpr size_t kCacheBytes = size_t{16} << 20;

}  // namespace

Facts paperFacts(const Topology& topology, int ranks) {
  const std::vector<GpuPlace> places = placeInOrder(topology, ranks);
  const host::MemoryLayout layout = host::makeLayout(ranks, kSlotBytes);
  Facts facts;
  facts.device = places.empty() ? fcclDeviceHost : fcclDeviceCuda;
  facts.ranks = ranks;
  facts.cores = std::max(1, topology.nodes[0].cpu.cores);
  facts.slotBytes = layout.slotBytes;
  facts.lamportSlotBytes = layout.lamportSlotBytes;
  facts.flagNanoseconds = kFarFlagNanoseconds;
  facts.cacheBytes = kCacheBytes;
  facts.simd = host::bestSimd();
  facts.group = groupFacts(topology, places);
  facts.ranksPerDevice = facts.group.ranksPerGpu;
  return facts;
}

}  // namespace fccl
