// The topology file. The JSON library throws: nothing of it leaves.
#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "base/files.h"
#include "transport/topology.h"
#include "transport/topology_cpu.h"

namespace fccl {
namespace {

using Json = nlohmann::json;

constexpr int kFormat = 1;
constexpr int kMostNodes = 1024;
constexpr int kMostGpusPerNode = 64;
constexpr size_t kMostBytes = size_t{16} << 20;

// One value of the file with the way to it, "nodes[0].gpus[1]", for errors. The first error of a file stays.
class Place {
 public:
  Place(const Json& value, std::string path, Status* error) : value_(value), path_(std::move(path)), error_(error) {}

  bool failed() const { return !error_->ok(); }
  // In errors. What holds other values is not written out: that may be deep, or long.
  std::string shown() const {
    if (value_.is_object()) return "an object";
    if (value_.is_array()) return fmt::format("a list of {}", value_.size());
    return value_.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 40);
  }
  const Json& value() const { return value_; }

  template <class... Args>
  void refuse(fmt::format_string<Args...> text, Args&&... args) const {
    if (failed()) return;
    *error_ = failure(fcclInvalidArgument, "{} {}", path_.empty() ? "the file" : path_,
                      fmt::format(text, std::forward<Args>(args)...));
  }

  // Fails where this is not an object, or has a name that is not listed.
  bool isObject(std::initializer_list<const char*> names) const {
    if (!value_.is_object()) {
      refuse("is {}; it must be an object with {}", shown(), fmt::join(names, ", "));
      return false;
    }
    for (const auto& [name, unused] : value_.items()) {
      if (std::ranges::find(names, name) == names.end()) {
        refuse("has '{}', which means nothing there; it can have {}", name, fmt::join(names, ", "));
      }
    }
    return !failed();
  }

  bool has(const char* name) const { return value_.contains(name); }
  Place at(const char* name) const {
    return {value_.at(name), path_.empty() ? name : fmt::format("{}.{}", path_, name), error_};
  }
  Place at(size_t index) const { return {value_.at(index), fmt::format("{}[{}]", path_, index), error_}; }

  // Each takes the named value over, where it is there.
  void text(const char* name, std::string* target) const {
    if (!has(name)) return;
    const Place place = at(name);
    if (!place.value_.is_string()) return place.refuse("is {}; it must be text in quotes", place.shown());
    *target = place.value_.get<std::string>();
  }
  template <class Number>
  void integer(const char* name, int64_t least, int64_t most, Number* target) const {
    if (!has(name)) return;
    const Place place = at(name);
    const bool fits = place.value_.is_number_integer() && place.value_.get<double>() >= static_cast<double>(least) &&
                      place.value_.get<double>() <= static_cast<double>(most);
    if (!fits) return place.refuse("is {}; it must be a whole number from {} to {}", place.shown(), least, most);
    *target = static_cast<Number>(place.value_.get<int64_t>());
  }
  void number(const char* name, double* target) const {
    if (!has(name)) return;
    const Place place = at(name);
    if (!place.value_.is_number() || place.value_.get<double>() < 0 || place.value_.get<double>() > 1e9) {
      return place.refuse("is {}; it must be a number from 0 (not known) to 1e9", place.shown());
    }
    *target = place.value_.get<double>();
  }
  void boolean(const char* name, bool* target) const {
    if (!has(name)) return;
    const Place place = at(name);
    if (!place.value_.is_boolean()) return place.refuse("is {}; it must be true or false", place.shown());
    *target = place.value_.get<bool>();
  }
  // The elements of a list; none where there is no such name.
  std::vector<Place> list(const char* name) const {
    std::vector<Place> elements;
    if (!has(name)) return elements;
    const Place place = at(name);
    if (!place.value_.is_array()) {
      place.refuse("is {}; it must be a list in brackets", place.shown());
      return elements;
    }
    for (size_t i = 0; i < place.value_.size(); i++) elements.push_back(place.at(i));
    return elements;
  }

 private:
  const Json& value_;
  std::string path_;
  Status* error_;
};

void takeLinkFacts(const Place& place, std::initializer_list<LinkKind> kinds, LinkFacts* facts) {
  std::string kind;
  place.text("kind", &kind);
  std::vector<const char*> words;
  bool known = false;
  for (const LinkKind candidate : kinds) {
    words.push_back(linkKindName(candidate));
    if (kind != words.back()) continue;
    facts->kind = candidate;
    known = true;
  }
  if (!known) place.refuse("has the kind '{}'; it can be {}", kind, fmt::join(words, ", "));
  place.integer("lanes", 0, 1024, &facts->lanes);
  place.number("gigabytesPerSecond", &facts->gigabytesPerSecond);
  place.number("latencyNanoseconds", &facts->latencyNanoseconds);
  place.boolean("peerAccess", &facts->peerAccess);
}

void takeGpus(const Place& place, TopologyNode* node) {
  if (!place.isObject(
          {"count", "uuid", "name", "busId", "sm", "numaNode", "memoryGigabytesPerSecond", "multicast", "fabric"})) {
    return;
  }
  int count = 1;
  TopologyGpu gpu;
  place.integer("count", 1, kMostGpusPerNode, &count);
  place.text("uuid", &gpu.uuid);
  place.text("name", &gpu.name);
  place.text("busId", &gpu.busId);
  place.integer("sm", 10, 999, &gpu.sm);
  if (!place.has("sm")) place.refuse("has no 'sm'; give the compute capability, as 90 for 9.0");
  place.integer("numaNode", -1, 4096, &gpu.numaNode);
  place.number("memoryGigabytesPerSecond", &gpu.memoryGigabytesPerSecond);
  place.boolean("multicast", &gpu.multicast);
  if (place.has("fabric")) {
    const Place fabric = place.at("fabric");
    if (!fabric.isObject({"cluster", "clique"})) return;
    fabric.text("cluster", &gpu.fabricCluster);
    fabric.integer("clique", 0, UINT32_MAX, &gpu.fabricClique);
    if (gpu.fabricCluster.empty()) fabric.refuse("names no 'cluster'; leave 'fabric' out where there is none");
  }
  if (count > 1 && !gpu.uuid.empty()) place.refuse("gives {} GPUs the uuid {}; each has its own", count, gpu.uuid);
  node->gpus.insert(node->gpus.end(), static_cast<size_t>(count), gpu);
  if (node->gpus.size() > kMostGpusPerNode) place.refuse("is beyond {} GPUs in a node", kMostGpusPerNode);
}

void takeLink(const Place& place, TopologyNode* node) {
  if (!place.isObject({"between", "kind", "lanes", "gigabytesPerSecond", "latencyNanoseconds", "peerAccess"})) return;
  LinkFacts facts;
  takeLinkFacts(place, {LinkKind::kNvswitch, LinkKind::kNvlink, LinkKind::kPcie, LinkKind::kSystem}, &facts);
  const int gpus = static_cast<int>(node->gpus.size());
  const Json& between = place.has("between") ? place.at("between").value() : place.value();
  const auto isIndex = [&](const Json& index) {
    return index.is_number_integer() && index.get<double>() >= 0 && index.get<double>() < gpus;
  };
  const bool all = between.is_string() && between.get<std::string>() == "all";
  const bool pair = between.is_array() && between.size() == 2 && isIndex(between[0]) && isIndex(between[1]) &&
                    between[0] != between[1];
  if (!all && !pair) {
    return place.refuse("needs \"between\": \"all\", or two different GPUs of the node as [0, 1]; the node has {}",
                        gpus);
  }
  if (place.failed()) return;
  for (int second = 0; second < gpus; second++) {
    for (int first = 0; first < second; first++) {
      if (pair && std::minmax(between[0].get<int>(), between[1].get<int>()) != std::minmax(first, second)) continue;
      const auto same = [&](const TopologyLink& link) { return link.first == first && link.second == second; };
      // A pair after "all" is an exception from it.
      const auto known = std::ranges::find_if(node->links, same);
      if (known != node->links.end()) {
        known->facts = facts;
      } else {
        node->links.push_back({first, second, facts});
      }
    }
  }
}

void takeNode(const Place& place, Topology* topology) {
  if (!place.isObject({"count", "host", "cpu", "gpus", "links"})) return;
  int count = 1;
  TopologyNode node;
  place.integer("count", 1, kMostNodes, &count);
  place.text("host", &node.host);
  if (place.has("cpu")) {
    const Place cpu = place.at("cpu");
    if (!cpu.isObject({"sockets", "numaNodes", "cores"})) return;
    cpu.integer("sockets", 1, 1024, &node.cpu.sockets);
    cpu.integer("numaNodes", 1, 4096, &node.cpu.numaNodes);
    cpu.integer("cores", 1, 1 << 20, &node.cpu.cores);
  }
  for (const Place& gpu : place.list("gpus")) takeGpus(gpu, &node);
  for (const Place& link : place.list("links")) takeLink(link, &node);
  if (!place.has("cpu") && node.gpus.empty()) place.refuse("has neither 'cpu' nor 'gpus'");
  topology->nodes.insert(topology->nodes.end(), static_cast<size_t>(count), node);
  if (topology->nodes.size() > kMostNodes) place.refuse("is beyond {} nodes", kMostNodes);
}

void takeTopology(const Place& place, Topology* topology) {
  if (!place.isObject({"format", "name", "source", "nodes", "fabric", "network", "notes"})) return;
  int format = 0;
  place.integer("format", 1, 1 << 20, &format);
  if (format != kFormat) {
    return place.refuse("has format {}; this version reads format {} (\"format\": {})", format, kFormat, kFormat);
  }
  place.text("name", &topology->name);
  place.text("source", &topology->source);
  for (const Place& node : place.list("nodes")) takeNode(node, topology);
  if (topology->nodes.empty()) place.refuse("has no 'nodes'; give at least one");
  topology->fabric.kind = LinkKind::kFabric;
  topology->network.kind = LinkKind::kNetwork;
  const auto between = [&](const char* name, LinkKind kind, LinkFacts* facts) {
    if (!place.has(name)) return;
    const Place link = place.at(name);
    if (!link.isObject({"kind", "lanes", "gigabytesPerSecond", "latencyNanoseconds", "peerAccess"})) return;
    takeLinkFacts(link, {kind}, facts);
  };
  between("fabric", LinkKind::kFabric, &topology->fabric);
  between("network", LinkKind::kNetwork, &topology->network);
  for (const Place& note : place.list("notes")) {
    if (note.value().is_string()) topology->notes.push_back(note.value().get<std::string>());
  }
  std::set<std::string> uuids;
  for (const TopologyNode& node : topology->nodes) {
    for (const TopologyGpu& gpu : node.gpus) {
      if (!gpu.uuid.empty() && !uuids.insert(gpu.uuid).second) {
        place.refuse("has two GPUs with the uuid {}; each has its own", gpu.uuid);
      }
    }
  }
}

// "line 3, column 7" of a byte, counted from 1.
std::string placeInText(const std::string& text, size_t byte) {
  const size_t end = std::min(text.size(), byte > 0 ? byte - 1 : 0);
  const auto line = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end), '\n') + 1;
  const size_t newline = end == 0 ? std::string::npos : text.rfind('\n', end - 1);
  return fmt::format("line {}, column {}", line, newline == std::string::npos ? end + 1 : end - newline);
}

Json linkJson(const LinkFacts& facts) {
  return {{"kind", linkKindName(facts.kind)},
          {"lanes", facts.lanes},
          {"gigabytesPerSecond", facts.gigabytesPerSecond},
          {"latencyNanoseconds", facts.latencyNanoseconds},
          {"peerAccess", facts.peerAccess}};
}

Json gpuJson(const TopologyGpu& gpu) {
  Json json = {{"name", gpu.name},
               {"sm", gpu.sm},
               {"numaNode", gpu.numaNode},
               {"memoryGigabytesPerSecond", gpu.memoryGigabytesPerSecond},
               {"multicast", gpu.multicast}};
  if (!gpu.uuid.empty()) json["uuid"] = gpu.uuid;
  if (!gpu.busId.empty()) json["busId"] = gpu.busId;
  if (!gpu.fabricCluster.empty()) json["fabric"] = {{"cluster", gpu.fabricCluster}, {"clique", gpu.fabricClique}};
  return json;
}

Json nodeJson(const TopologyNode& node) {
  Json json = Json::object();
  if (!node.host.empty()) json["host"] = node.host;
  if (node.cpu != TopologyCpu{}) {
    json["cpu"] = {{"sockets", node.cpu.sockets}, {"numaNodes", node.cpu.numaNodes}, {"cores", node.cpu.cores}};
  }
  json["gpus"] = Json::array();
  for (const TopologyGpu& gpu : node.gpus) json["gpus"].push_back(gpuJson(gpu));
  json["links"] = Json::array();
  for (const TopologyLink& link : node.links) {
    Json one = linkJson(link.facts);
    one["between"] = {link.first, link.second};
    json["links"].push_back(std::move(one));
  }
  return json;
}

}  // namespace

Result<Topology> parseTopology(const std::string& text, const std::string& nameInErrors) {
  const auto inFile = [&](const std::string& what) {
    return failure(fcclInvalidArgument, "topology file {}: {}. docs/topology.md describes the format.", nameInErrors,
                   what);
  };
  try {
    Topology topology;
    Status error;
    const Json json = Json::parse(text);
    takeTopology(Place(json, "", &error), &topology);
    if (!error.ok()) return inFile(error.message());
    return topology;
  } catch (const Json::parse_error& error) {
    return inFile(fmt::format("{} is not JSON: {}", placeInText(text, error.byte),
                              text.empty() ? "the file is empty" : "a value, comma or bracket is wrong there"));
  } catch (const Json::exception& error) {
    return inFile(error.what());
  }
}

Result<Topology> readTopology(const std::string& path) {
  std::string text;
  if (const int error = readFile(path, kMostBytes + 1, &text); error != 0) {
    return failure(fcclInvalidArgument, "topology file {} cannot be read: {}. Check FCCL_TOPO_FILE, or unset it.", path,
                   fileErrorText(error));
  }
  if (text.size() > kMostBytes) {
    return failure(fcclInvalidArgument, "topology file {} is longer than {} MiB; that is no topology.", path,
                   kMostBytes >> 20);
  }
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '<') return topologyOfHwlocXml(text, path);
  return parseTopology(text, path);
}

std::string topologyJson(const Topology& topology) {
  Json json = {{"format", kFormat}, {"name", topology.name}, {"source", topology.source}};
  json["nodes"] = Json::array();
  for (const TopologyNode& node : topology.nodes) json["nodes"].push_back(nodeJson(node));
  if (topology.fabric.kind == LinkKind::kFabric) json["fabric"] = linkJson(topology.fabric);
  if (topology.network.kind == LinkKind::kNetwork) json["network"] = linkJson(topology.network);
  if (!topology.notes.empty()) json["notes"] = topology.notes;
  // Names that are not UTF-8 are written with replacements rather than refused.
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Status writeTopology(const Topology& topology, const std::string& path) {
  const int error = replaceFile(path, topologyJson(topology));
  if (error == 0) return {};
  return failure(fcclSystemError, "the topology cannot be written to {}: {}. Check FCCL_TOPO_DUMP.", path,
                 fileErrorText(error));
}

}  // namespace fccl
