#include "transport/topology.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "transport/siphash.h"

namespace fccl {
namespace {

constexpr std::array kLinkKindNames = {"self", "nvswitch", "nvlink", "fabric", "pcie", "system", "network"};

const TopologyNode& nodeAt(const Topology& topology, GpuPlace place) {
  return topology.nodes[static_cast<size_t>(place.node)];
}

bool sameFabric(const TopologyGpu& a, const TopologyGpu& b) {
  return !a.fabricCluster.empty() && a.fabricCluster == b.fabricCluster && a.fabricClique == b.fabricClique;
}

// 0 stands for not known, which is worse than any figure.
double worseRate(double a, double b) { return a == 0 || b == 0 ? 0 : std::min(a, b); }

std::string plural(size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string describeLink(const LinkFacts& link) {
  std::string text = linkKindName(link.kind);
  if (link.lanes > 0) text += fmt::format(" x{}", link.lanes);
  if (link.gigabytesPerSecond > 0) text += fmt::format(", {:g} GB/s each way", link.gigabytesPerSecond);
  if (link.latencyNanoseconds > 0) text += fmt::format(", {:g} ns", link.latencyNanoseconds);
  return text + (link.peerAccess ? ", peer access" : ", no peer access");
}

std::string describeGpu(const TopologyGpu& gpu) {
  std::string text = gpu.name.empty() ? "GPU" : gpu.name;
  if (gpu.sm > 0) text += fmt::format(", sm_{}", gpu.sm);
  if (gpu.memoryGigabytesPerSecond > 0) text += fmt::format(", memory {:g} GB/s", gpu.memoryGigabytesPerSecond);
  if (gpu.numaNode >= 0) text += fmt::format(", NUMA node {}", gpu.numaNode);
  if (!gpu.busId.empty()) text += ", " + gpu.busId;
  if (!gpu.uuid.empty()) text += ", " + gpu.uuid;
  if (gpu.multicast) text += ", multicast";
  if (!gpu.fabricCluster.empty()) text += fmt::format(", fabric {} clique {}", gpu.fabricCluster, gpu.fabricClique);
  return text;
}

// "0-3, 6".
std::string describeIndices(const std::vector<size_t>& indices) {
  std::string text;
  for (size_t i = 0; i < indices.size();) {
    size_t last = i;
    while (last + 1 < indices.size() && indices[last + 1] == indices[last] + 1) last++;
    if (!text.empty()) text += ", ";
    text += last == i ? fmt::format("{}", indices[i]) : fmt::format("{}-{}", indices[i], indices[last]);
    i = last + 1;
  }
  return text;
}

// Lines that are equal but for the index, together.
std::string describeEqualGpus(const TopologyNode& node) {
  std::vector<std::pair<std::string, std::vector<size_t>>> kinds;
  for (size_t i = 0; i < node.gpus.size(); i++) {
    const std::string text = describeGpu(node.gpus[i]);
    const auto known = std::ranges::find(kinds, text, [](const auto& kind) { return kind.first; });
    if (known == kinds.end()) {
      kinds.emplace_back(text, std::vector<size_t>{i});
    } else {
      known->second.push_back(i);
    }
  }
  std::string text;
  for (const auto& [line, indices] : kinds) {
    text += fmt::format("  GPU {}: {}\n", describeIndices(indices), line);
  }
  return text;
}

std::string describeEqualLinks(const TopologyNode& node) {
  std::map<std::string, std::vector<std::string>> kinds;
  for (const TopologyLink& link : node.links) {
    kinds[describeLink(link.facts)].push_back(fmt::format("{}-{}", link.first, link.second));
  }
  const size_t pairs = node.gpus.size() * (node.gpus.size() - 1) / 2;
  std::string text;
  for (const auto& [line, between] : kinds) {
    std::string which = "between all";
    if (between.size() < pairs) which = fmt::format("{}", fmt::join(between, ", "));
    text += fmt::format("  link {}: {}\n", which, line);
  }
  return text;
}

std::string describeNode(const TopologyNode& node) {
  std::string text;
  if (node.cpu.cores > 0) {
    text += fmt::format("  CPU: {}, {}, {}\n", plural(static_cast<size_t>(node.cpu.sockets), "socket"),
                        plural(static_cast<size_t>(node.cpu.numaNodes), "NUMA node"),
                        plural(static_cast<size_t>(node.cpu.cores), "core"));
  }
  if (!node.gpus.empty()) text += describeEqualGpus(node) + describeEqualLinks(node);
  return text;
}

}  // namespace

const char* linkKindName(LinkKind kind) { return kLinkKindNames[static_cast<size_t>(kind)]; }

int Topology::gpus() const {
  size_t count = 0;
  for (const TopologyNode& node : nodes) count += node.gpus.size();
  return static_cast<int>(count);
}

LinkFacts linkBetween(const Topology& topology, GpuPlace a, GpuPlace b) {
  if (a == b) return {.kind = LinkKind::kSelf, .peerAccess = true};
  if (a.node != b.node) {
    return sameFabric(gpuAt(topology, a), gpuAt(topology, b)) ? topology.fabric : topology.network;
  }
  const auto [first, second] = std::minmax(a.gpu, b.gpu);
  for (const TopologyLink& link : nodeAt(topology, a).links) {
    if (link.first == first && link.second == second) return link.facts;
  }
  return {};
}

bool findGpu(const Topology& topology, const std::string& uuid, GpuPlace* place) {
  if (uuid.empty()) return false;
  for (size_t n = 0; n < topology.nodes.size(); n++) {
    const auto& gpus = topology.nodes[n].gpus;
    const auto found = std::ranges::find(gpus, uuid, &TopologyGpu::uuid);
    if (found == gpus.end()) continue;
    *place = {static_cast<int>(n), static_cast<int>(found - gpus.begin())};
    return true;
  }
  return false;
}

std::vector<GpuPlace> placeInOrder(const Topology& topology, int ranks) {
  std::vector<GpuPlace> all;
  for (size_t n = 0; n < topology.nodes.size(); n++) {
    for (size_t g = 0; g < topology.nodes[n].gpus.size(); g++) {
      all.push_back({static_cast<int>(n), static_cast<int>(g)});
    }
  }
  std::vector<GpuPlace> places;
  if (all.empty()) return places;
  for (int r = 0; r < ranks; r++) places.push_back(all[static_cast<size_t>(r) % all.size()]);
  return places;
}

GroupFacts groupFacts(const Topology& topology, std::span<const GpuPlace> ranks) {
  GroupFacts facts;
  if (ranks.empty()) return facts;
  std::set<int> nodes;
  facts.oneFabric = true;
  facts.multicast = true;
  facts.sm = gpuAt(topology, ranks[0]).sm;
  facts.memoryGigabytesPerSecond = gpuAt(topology, ranks[0]).memoryGigabytesPerSecond;
  bool linked = false;
  for (size_t r = 0; r < ranks.size(); r++) {
    const TopologyGpu& gpu = gpuAt(topology, ranks[r]);
    nodes.insert(ranks[r].node);
    facts.ranksPerGpu = std::max(facts.ranksPerGpu, static_cast<int32_t>(std::ranges::count(ranks, ranks[r])));
    facts.sm = std::min(facts.sm, gpu.sm);
    facts.oneFabric = facts.oneFabric && sameFabric(gpu, gpuAt(topology, ranks[0]));
    facts.multicast = facts.multicast && gpu.multicast;
    facts.memoryGigabytesPerSecond = worseRate(facts.memoryGigabytesPerSecond, gpu.memoryGigabytesPerSecond);
    for (size_t other = 0; other < r; other++) {
      const LinkFacts link = linkBetween(topology, ranks[other], ranks[r]);
      if (facts.peerAccess && !link.peerAccess) {
        facts.peerAccess = false;
        facts.withoutPeerAccess[0] = static_cast<int32_t>(other);
        facts.withoutPeerAccess[1] = static_cast<int32_t>(r);
      }
      facts.link = std::max(facts.link, link.kind);
      if (link.kind == LinkKind::kSelf) continue;
      facts.gigabytesPerSecond =
          linked ? worseRate(facts.gigabytesPerSecond, link.gigabytesPerSecond) : link.gigabytesPerSecond;
      facts.latencyNanoseconds = std::max(facts.latencyNanoseconds, link.latencyNanoseconds);
      linked = true;
    }
  }
  facts.nodes = static_cast<int32_t>(nodes.size());
  return facts;
}

std::string topologySignature(const Topology& topology) {
  std::string text;
  for (const TopologyNode& node : topology.nodes) {
    text += "n";
    for (const TopologyGpu& gpu : node.gpus) text += fmt::format("g{}{}", gpu.sm, gpu.fabricCluster.empty() ? "" : "f");
    for (const TopologyLink& link : node.links) {
      text += fmt::format("l{}-{}:{}x{}{}", link.first, link.second, linkKindName(link.facts.kind), link.facts.lanes,
                          link.facts.peerAccess ? "p" : "");
    }
    if (node.gpus.empty()) text += fmt::format("c{}/{}/{}", node.cpu.sockets, node.cpu.numaNodes, node.cpu.cores);
  }
  // A fixed key: this names a thing, it proves nothing.
  return fmt::format("{:016x}", sipHash24(Key128{}, text.data(), text.size()));
}

std::string describeTopology(const Topology& topology) {
  std::string text = topology.name.empty() ? "topology" : topology.name;
  text += fmt::format(": {}, {}\n", plural(topology.nodes.size(), "node"),
                      plural(static_cast<size_t>(topology.gpus()), "GPU"));
  if (!topology.source.empty()) text += fmt::format("  figures: {}\n", topology.source);
  for (size_t n = 0; n < topology.nodes.size();) {
    const TopologyNode& node = topology.nodes[n];
    const std::string described = describeNode(node);
    size_t last = n;
    while (last + 1 < topology.nodes.size() && describeNode(topology.nodes[last + 1]) == described) last++;
    text += last == n ? fmt::format("node {}", n) : fmt::format("nodes {}-{}, each", n, last);
    text += node.host.empty() || last > n ? ":\n" : fmt::format(" ({}):\n", node.host);
    text += described;
    n = last + 1;
  }
  if (topology.nodes.size() > 1) {
    text += fmt::format("between nodes, within a fabric clique: {}\n", describeLink(topology.fabric));
    text += fmt::format("between nodes, else: {}\n", describeLink(topology.network));
  }
  for (const std::string& note : topology.notes) text += fmt::format("note: {}\n", note);
  return text;
}

}  // namespace fccl
