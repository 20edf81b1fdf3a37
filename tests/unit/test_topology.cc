#include <sys/stat.h>

#include <filesystem>
#include <thread>

#include "fccl.h"
#include "tests/support/catch.h"
#include "tests/support/scoped_file.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/topologies.h"
#include "transport/topology.h"

using namespace fccl;
using fccl::test::ScopedFile;
using fccl::test::ScopedVariable;
using fccl::test::shippedTopology;

namespace {

const std::filesystem::path kShipped = std::filesystem::path(FCCL_SOURCE_DIR) / "transport/topologies";

GroupFacts factsOf(const Topology& topology, int ranks) { return groupFacts(topology, placeInOrder(topology, ranks)); }

std::string errorOf(const std::string& text) {
  const Result<Topology> read = parseTopology(text, "t.json");
  CHECK_FALSE(read.ok());
  CHECK(read.status().code() == fcclInvalidArgument);
  return read.status().message();
}

constexpr const char* kTwoGpus = R"({"format": 1, "nodes": [{"gpus": [{"count": 2, "sm": 90}],
  "links": [{"between": [1, 0], "kind": "nvlink", "lanes": 4, "gigabytesPerSecond": 80, "peerAccess": true}]}]})";

}  // namespace

TEST_CASE("topology: every shipped file is right and says where its figures are from", "[topology]") {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kShipped)) {
    INFO(entry.path());
    files++;
    const Topology topology = shippedTopology(entry.path().stem().string());
    CHECK_FALSE(topology.name.empty());
    CHECK_FALSE(topology.source.empty());
    CHECK(topology.notes.empty());
    for (const TopologyNode& node : topology.nodes) {
      CHECK(node.cpu.cores > 0);
      CHECK(node.links.size() == node.gpus.size() * (node.gpus.size() - (node.gpus.empty() ? 0 : 1)) / 2);
      for (const TopologyGpu& gpu : node.gpus) {
        CHECK_FALSE(gpu.name.empty());
        CHECK(gpu.memoryGigabytesPerSecond > 0);
      }
      for (const TopologyLink& link : node.links) CHECK(link.facts.gigabytesPerSecond > 0);
    }
    const Result<Topology> again = parseTopology(topologyJson(topology), "written");
    INFO(again.status().message());
    REQUIRE(again.ok());
    CHECK(again.value() == topology);
  }
  CHECK(files == 6);
}

TEST_CASE("topology: what ranks of the shipped machines have in common", "[topology]") {
  const GroupFacts h100 = factsOf(shippedTopology("dgx-h100"), 8);
  CHECK(h100.nodes == 1);
  CHECK(h100.sm == 90);
  CHECK(h100.link == LinkKind::kNvswitch);
  CHECK(h100.peerAccess);
  CHECK(h100.multicast);
  CHECK_FALSE(h100.oneFabric);
  CHECK(h100.gigabytesPerSecond == 364);

  const GroupFacts rack = factsOf(shippedTopology("gb200-nvl72"), 8);
  CHECK(rack.nodes == 2);
  CHECK(rack.sm == 100);
  CHECK(rack.link == LinkKind::kFabric);
  CHECK(rack.oneFabric);
  CHECK(factsOf(shippedTopology("gb200-nvl72"), 4).nodes == 1);
  CHECK(factsOf(shippedTopology("gb200-nvl72"), 72).nodes == 18);

  const Topology pcie = shippedTopology("pcie-l40s");
  CHECK(factsOf(pcie, 4).link == LinkKind::kPcie);
  CHECK(factsOf(pcie, 8).link == LinkKind::kSystem);
  CHECK(factsOf(pcie, 8).gigabytesPerSecond == 20);
  CHECK_FALSE(factsOf(pcie, 8).multicast);

  CHECK(placeInOrder(shippedTopology("cpu-2-sockets"), 4).empty());
  CHECK(factsOf(shippedTopology("cpu-2-sockets"), 4).sm == 0);

  // Nine ranks on eight GPUs.
  CHECK(factsOf(shippedTopology("hgx-h200"), 9).ranksPerGpu == 2);
  CHECK(factsOf(shippedTopology("hgx-h200"), 8).ranksPerGpu == 1);
  CHECK(factsOf(shippedTopology("hgx-h200"), 1).link == LinkKind::kSelf);
}

TEST_CASE("topology: a pair without a link has no peer access, and is named", "[topology]") {
  Topology topology = parseTopology(kTwoGpus, "t").value();
  CHECK(factsOf(topology, 2).peerAccess);
  CHECK(linkBetween(topology, {0, 1}, {0, 0}).lanes == 4);
  topology.nodes[0].gpus.push_back(topology.nodes[0].gpus[0]);
  const GroupFacts three = factsOf(topology, 3);
  CHECK_FALSE(three.peerAccess);
  CHECK(three.withoutPeerAccess[0] == 0);
  CHECK(three.withoutPeerAccess[1] == 2);
  CHECK(three.link == LinkKind::kSystem);
  CHECK(three.gigabytesPerSecond == 0);
}

TEST_CASE("topology: GPUs are who their uuid says, though all bus ids are equal", "[topology]") {
  const Topology topology =
      parseTopology(
          R"({"format": 1, "nodes": [{"gpus": [{"sm": 90, "uuid": "GPU-a", "busId": "0000:00:00.0"},
                                           {"sm": 90, "uuid": "GPU-b", "busId": "0000:00:00.0"}]}]})",
          "t")
          .value();
  GpuPlace place;
  CHECK(findGpu(topology, "GPU-b", &place));
  CHECK(place == GpuPlace{0, 1});
  CHECK_FALSE(findGpu(topology, "GPU-c", &place));
  CHECK_FALSE(findGpu(topology, "", &place));
}

TEST_CASE("topology: a signature stays over names and figures and changes with what tuning depends on", "[topology]") {
  const Topology topology = parseTopology(kTwoGpus, "t").value();
  Topology other = topology;
  other.name = "x";
  other.nodes[0].host = "y";
  other.nodes[0].gpus[0].uuid = "GPU-z";
  other.nodes[0].links[0].facts.gigabytesPerSecond = 81;
  CHECK(topologySignature(other) == topologySignature(topology));
  CHECK(topologySignature(topology).size() == 16);
  other.nodes[0].links[0].facts.lanes = 5;
  CHECK(topologySignature(other) != topologySignature(topology));
  other = topology;
  other.nodes[0].gpus[1].sm = 100;
  CHECK(topologySignature(other) != topologySignature(topology));
  other = topology;
  other.nodes.push_back(other.nodes[0]);
  CHECK(topologySignature(other) != topologySignature(topology));
}

TEST_CASE("topology: a file that is wrong is refused by its name, the place and the cure", "[topology]") {
  const auto file = [](const std::string& nodes) { return "{\"format\": 1, \"nodes\": " + nodes + "}"; };
  const auto gpus = [&](const std::string& fields) { return file("[{\"gpus\": [{" + fields + "}]}]"); };
  const auto links = [&](const std::string& fields) {
    return file("[{\"gpus\": [{\"count\": 2, \"sm\": 90}], \"links\": [{" + fields + "}]}]");
  };
  struct Bad {
    std::string text;
    const char* place;
    const char* cure;
  };
  const Bad table[] = {
      {"", "line 1, column 1", "the file is empty"},
      {"{\"format\": 1,\n \"nodes\": [}", "line 2, column 12", "is not JSON"},
      {"{\"format\": 1", "line 1", "is not JSON"},
      {"[]", "the file", "must be an object with format, name"},
      {"{\"nodes\": []}", "the file", "\"format\": 1"},
      {"{\"format\": 2, \"nodes\": []}", "has format 2", "\"format\": 1"},
      {"{\"format\": 1}", "has no 'nodes'", "at least one"},
      {"{\"format\": 1, \"node\": []}", "'node'", "it can have format, name, source, nodes"},
      {file("{}"), "nodes is an object", "a list in brackets"},
      {file("[{}]"), "nodes[0]", "neither 'cpu' nor 'gpus'"},
      {file("[{\"cpu\": {}}, {\"cpu\": {\"cores\": 0}}]"), "nodes[1].cpu.cores is 0", "from 1 to"},
      {file("[{\"count\": 2000, \"cpu\": {}}]"), "nodes[0].count is 2000", "from 1 to 1024"},
      {gpus(""), "nodes[0].gpus[0] has no 'sm'", "90 for 9.0"},
      {gpus("\"sm\": \"90\""), "nodes[0].gpus[0].sm is \"90\"", "a whole number from 10 to 999"},
      {gpus("\"sm\": 90, \"name\": 7"), "gpus[0].name is 7", "text in quotes"},
      {gpus("\"sm\": 90, \"multicast\": 1"), "multicast is 1", "true or false"},
      {gpus("\"sm\": 90, \"memoryGigabytesPerSecond\": -1"), "memoryGigabytesPerSecond is -1", "a number from 0"},
      {gpus("\"sm\": 90, \"fabric\": {}"), "gpus[0].fabric", "leave 'fabric' out"},
      {gpus("\"sm\": 90, \"count\": 2, \"uuid\": \"GPU-1\""), "uuid GPU-1", "each has its own"},
      {file("[{\"gpus\": [{\"sm\": 90, \"uuid\": \"u\"}, {\"sm\": 90, \"uuid\": \"u\"}]}]"), "uuid u", "its own"},
      {links("\"between\": \"all\", \"kind\": \"nvlnk\""), "the kind 'nvlnk'", "nvswitch, nvlink, pcie, system"},
      {links("\"between\": \"all\""), "links[0] has the kind ''", "it can be nvswitch"},
      {links("\"between\": [0, 2], \"kind\": \"pcie\""), "links[0] needs", "the node has 2"},
      {links("\"between\": [0, 0], \"kind\": \"pcie\""), "links[0] needs", "two different GPUs"},
      {links("\"kind\": \"pcie\""), "links[0] needs", "\"between\": \"all\""},
      {"{\"format\": 1, \"nodes\": [{\"cpu\": {}}], \"network\": {\"kind\": \"nvlink\"}}", "network has the kind",
       "it can be network"},
  };
  for (const Bad& bad : table) {
    const std::string message = errorOf(bad.text);
    INFO(message);
    CHECK(message.starts_with("topology file t.json: "));
    CHECK(message.find(bad.place) != std::string::npos);
    CHECK(message.find(bad.cure) != std::string::npos);
    CHECK(message.ends_with("docs/topology.md describes the format."));
  }
}

TEST_CASE("topology: every byte cut off or changed gives a topology or a sentence", "[topology]") {
  const std::string good = topologyJson(shippedTopology("pcie-l40s"));
  int refused = 0;
  for (size_t i = 0; i < good.size(); i += 7) {
    std::string damaged = good;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x15);
    for (const std::string& text : {damaged, good.substr(0, i)}) {
      const Result<Topology> read = parseTopology(text, "t.json");
      if (read.ok()) continue;
      refused++;
      if (!read.status().message().starts_with("topology file t.json: ")) FAIL(read.status().message());
    }
  }
  CHECK(refused > 100);
}

TEST_CASE("topology: files that cannot be read or written", "[topology]") {
  const Result<Topology> missing = readTopology("/nonexistent/t.json");
  CHECK(missing.status().message().find("/nonexistent/t.json cannot be read: No such file") != std::string::npos);
  CHECK_FALSE(readTopology("/tmp").ok());
  const Status unwritten = writeTopology(Topology(), "/nonexistent/t.json");
  CHECK(unwritten.message().find("/nonexistent/t.json: No such file") != std::string::npos);

  ScopedFile file("topology.json");
  file.write("old");
  REQUIRE(writeTopology(shippedTopology("dgx-b200"), file.path()).ok());
  CHECK(readTopology(file.path()).value() == shippedTopology("dgx-b200"));
}

TEST_CASE("topology: a file that is nested deeply is refused as any other", "[topology]") {
  constexpr size_t kDeep = 200'000;
  for (const char* form : {"{}", R"({{"format": 1, "name": {}}})", R"({{"format": 1, "nodes": [{}]}})"}) {
    const std::string deep = std::string(kDeep, '[') + std::string(kDeep, ']');
    CHECK(errorOf(fmt::format(fmt::runtime(form), deep)).find("a list of 1") != std::string::npos);
  }
}

TEST_CASE("topology: neither a pipe nor a device is waited for, replaced or written to", "[topology]") {
  const ScopedFile pipe("fccl_topology_pipe");
  REQUIRE(::mkfifo(pipe.path().c_str(), 0600) == 0);
  const Topology topology = shippedTopology("dgx-h100");
  for (const std::string& path : {pipe.path(), std::string("/dev/null")}) {
    const Result<Topology> read = readTopology(path);
    CHECK(read.status().code() == fcclInvalidArgument);
    CHECK(read.status().message().find("a pipe, a device or a socket") != std::string::npos);
  }
  const Status written = writeTopology(topology, pipe.path());
  CHECK(written.code() == fcclSystemError);
  CHECK(written.message().find("a pipe, a device or a socket") != std::string::npos);
  CHECK(std::filesystem::is_fifo(pipe.path()));
}

TEST_CASE("topology: what a link leads to is replaced, not the link", "[topology]") {
  const ScopedFile file("fccl_topology_target.json");
  const ScopedFile link("fccl_topology_link.json");
  const Topology topology = shippedTopology("dgx-h100");
  REQUIRE(writeTopology(topology, file.path()).ok());
  std::filesystem::create_symlink(file.path(), link.path());
  REQUIRE(writeTopology(shippedTopology("dgx-b200"), link.path()).ok());
  CHECK(std::filesystem::is_symlink(link.path()));
  CHECK(readTopology(file.path()).value() == shippedTopology("dgx-b200"));
}

TEST_CASE("topology: hwloc's XML gives the CPU side", "[topology]") {
  ScopedFile file("lstopo.xml");
  file.write(R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
 <object type="Machine" os_index="0" cpuset="0xf" complete_cpuset="0xf" allowed_cpuset="0xf" nodeset="0x3"
   complete_nodeset="0x3" allowed_nodeset="0x3" gp_index="1">
  <object type="Package" os_index="0" cpuset="0x3" complete_cpuset="0x3" nodeset="0x1" complete_nodeset="0x1" gp_index="2">
   <object type="NUMANode" os_index="0" cpuset="0x3" complete_cpuset="0x3" nodeset="0x1" complete_nodeset="0x1"
     gp_index="3" local_memory="1048576"/>
   <object type="Core" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="4">
    <object type="PU" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="5"/>
   </object>
   <object type="Core" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x1" complete_nodeset="0x1" gp_index="6">
    <object type="PU" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x1" complete_nodeset="0x1" gp_index="7"/>
   </object>
  </object>
  <object type="Package" os_index="1" cpuset="0xc" complete_cpuset="0xc" nodeset="0x2" complete_nodeset="0x2" gp_index="8">
   <object type="NUMANode" os_index="1" cpuset="0xc" complete_cpuset="0xc" nodeset="0x2" complete_nodeset="0x2"
     gp_index="9" local_memory="1048576"/>
   <object type="Core" os_index="2" cpuset="0x4" complete_cpuset="0x4" nodeset="0x2" complete_nodeset="0x2" gp_index="10">
    <object type="PU" os_index="2" cpuset="0x4" complete_cpuset="0x4" nodeset="0x2" complete_nodeset="0x2" gp_index="11"/>
   </object>
   <object type="Core" os_index="3" cpuset="0x8" complete_cpuset="0x8" nodeset="0x2" complete_nodeset="0x2" gp_index="12">
    <object type="PU" os_index="3" cpuset="0x8" complete_cpuset="0x8" nodeset="0x2" complete_nodeset="0x2" gp_index="13"/>
   </object>
  </object>
 </object>
</topology>
)");
  const Result<Topology> read = readTopology(file.path());
  INFO(read.status().message());
  REQUIRE(read.ok());
  CHECK(read.value().nodes[0].cpu == TopologyCpu{2, 2, 4});
  file.write("<topology");
  CHECK(readTopology(file.path()).status().message().find("lstopo FILE.xml") != std::string::npos);
}

TEST_CASE("topology: a communicator reads FCCL_TOPO_FILE and rank 0 writes FCCL_TOPO_DUMP", "[topology]") {
  ScopedFile dump("dump.json");
  fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
  config.deviceType = fcclDeviceHost;
  fcclComm_t comms[2];
  const auto destroy = [&] {
    for (fcclComm_t comm : comms) CHECK(fcclCommDestroy(comm) == fcclSuccess);
  };
  {
    const ScopedVariable to("FCCL_TOPO_DUMP", dump.path().c_str());
    REQUIRE(fcclCommInitAll(comms, 2, &config) == fcclSuccess);
    destroy();
    CHECK(readTopology(dump.path()).value().name == "this machine");

    const ScopedVariable from("FCCL_TOPO_FILE", (kShipped / "dgx-h100.json").c_str());
    REQUIRE(fcclCommInitAll(comms, 2, &config) == fcclSuccess);
    destroy();
    CHECK(readTopology(dump.path()).value() == shippedTopology("dgx-h100"));
  }
  {
    dump.write("{\"format\": 1}");
    const ScopedVariable from("FCCL_TOPO_FILE", dump.path().c_str());
    CHECK(fcclCommInitAll(comms, 2, &config) == fcclInvalidArgument);
    CHECK(std::string(fcclGetLastError(nullptr)).find(dump.path() + ": the file has no 'nodes'") != std::string::npos);
    CHECK(comms[0] == nullptr);
  }
  const ScopedVariable to("FCCL_TOPO_DUMP", "/nonexistent/t.json");
  CHECK(fcclCommInitAll(comms, 2, &config) == fcclSystemError);
}
