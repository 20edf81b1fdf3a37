// What the machines look like that ranks run on: nodes, their CPUs and GPUs, and what lies between GPUs. A value: read
// from a file, detected, or built by a test. docs/topology.md describes the file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace fccl {

// From near to far. kSelf: one GPU.
enum class LinkKind : uint8_t { kSelf, kNvswitch, kNvlink, kFabric, kPcie, kSystem, kNetwork };
// "nvswitch".
const char* linkKindName(LinkKind kind);
// Whether bytes stay on NVLink, within a node or between nodes.
inline bool isNvlink(LinkKind kind) {
  return kind == LinkKind::kNvswitch || kind == LinkKind::kNvlink || kind == LinkKind::kFabric;
}

struct LinkFacts {
  LinkKind kind = LinkKind::kSystem;
  int lanes = 0;                  // NVLinks of one GPU on this way; PCIe: lanes
  double gigabytesPerSecond = 0;  // that a kernel gets one way while both ways are busy; 0: not known
  double latencyNanoseconds = 0;  // of a flag, one way; 0: not known
  bool peerAccess = false;        // kernels of one GPU read and write the memory of the other
  bool operator==(const LinkFacts&) const = default;
};

struct TopologyLink {
  int first = 0;  // indices of GPUs of one node, first < second
  int second = 0;
  LinkFacts facts;
  bool operator==(const TopologyLink&) const = default;
};

struct TopologyGpu {
  std::string uuid;  // "GPU-...", as nvidia-smi has it; empty: not known. This, not busId, is who a GPU is
  std::string name;
  std::string busId;                    // "0000:18:00.0"
  int sm = 0;                           // compute capability, 90 for 9.0
  int numaNode = -1;                    // -1: not known
  double memoryGigabytesPerSecond = 0;  // that a kernel reads and writes together; 0: not known
  bool multicast = false;               // has multicast objects
  std::string fabricCluster;            // of multi-node NVLink; empty: in none
  unsigned fabricClique = 0;
  bool operator==(const TopologyGpu&) const = default;
};

struct TopologyCpu {
  int sockets = 0;
  int numaNodes = 0;
  int cores = 0;
  bool operator==(const TopologyCpu&) const = default;
};

struct TopologyNode {
  std::string host;
  TopologyCpu cpu;
  std::vector<TopologyGpu> gpus;
  std::vector<TopologyLink> links;  // a pair without one: kSystem, no peer access
  bool operator==(const TopologyNode&) const = default;
};

struct Topology {
  std::string name;
  std::string source;  // where the figures are from
  std::vector<TopologyNode> nodes;
  LinkFacts fabric;                // between GPUs of different nodes in one clique
  LinkFacts network;               // between all other GPUs of different nodes
  std::vector<std::string> notes;  // what detection could not find out, and why; sentences
  bool operator==(const Topology&) const = default;

  int gpus() const;
};

// A GPU of a topology.
struct GpuPlace {
  int node = 0;
  int gpu = 0;
  bool operator==(const GpuPlace&) const = default;
};

LinkFacts linkBetween(const Topology& topology, GpuPlace a, GpuPlace b);
inline const TopologyGpu& gpuAt(const Topology& topology, GpuPlace place) {
  return topology.nodes[static_cast<size_t>(place.node)].gpus[static_cast<size_t>(place.gpu)];
}
// False where no GPU has this uuid.
bool findGpu(const Topology& topology, const std::string& uuid, GpuPlace* place);

// What a group of ranks has in common: of every fact the worst that any rank, or pair of ranks, has. Fixed size, no
// pointers: it travels as bytes, so that all ranks decide by the same.
struct GroupFacts {
  int32_t nodes = 1;
  int32_t ranksPerGpu = 1;
  int32_t sm = 0;  // of the oldest GPU; 0: no GPUs, or not known
  LinkKind link = LinkKind::kSelf;
  bool peerAccess = true;                   // between all pairs
  bool oneFabric = false;                   // all GPUs in one clique of multi-node NVLink
  bool multicast = false;                   // all GPUs have multicast objects
  int32_t withoutPeerAccess[2] = {-1, -1};  // the first pair of ranks that has none
  double gigabytesPerSecond = 0;            // as in LinkFacts
  double latencyNanoseconds = 0;
  double memoryGigabytesPerSecond = 0;
};
GroupFacts groupFacts(const Topology& topology, std::span<const GpuPlace> ranks);

// Rank r on the r-th GPU, counted through the nodes; ranks beyond the last begin again at the first. Empty where there
// are no GPUs.
std::vector<GpuPlace> placeInOrder(const Topology& topology, int ranks);

// What makes tuning results of one machine valid on another: 16 hexadecimal digits over generation, links and counts,
// not over names, addresses or figures.
std::string topologySignature(const Topology& topology);

// The facts of a topology as lines of text.
std::string describeTopology(const Topology& topology);

// A JSON file, or hwloc's XML for a node without GPUs. A failure names the file, the place in it, and what is expected
// there.
Result<Topology> readTopology(const std::string& path);
Result<Topology> parseTopology(const std::string& text, const std::string& nameInErrors);
// Replaces the file at once, or leaves it as it was.
Status writeTopology(const Topology& topology, const std::string& path);
std::string topologyJson(const Topology& topology);

// This machine: hwloc, NVML and the CUDA driver, the latter two where they are. Never fails: what cannot be found out
// is left at its default and a note says why. Reads the machine anew each time.
Topology detectTopology();

}  // namespace fccl
