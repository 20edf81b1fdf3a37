// Which strategy can do what where, on machines of files, and that docs/selection.md has the same sentences.
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/topologies.h"
#include "tuner/needs.h"
#include "tuner/paper_facts.h"

using namespace fccl;
using fccl::test::shippedTopology;

namespace {

Query query(int64_t rows, int64_t cols, bool norm) {
  Query asked;
  asked.dtype = fcclBfloat16;
  asked.norm = norm;
  asked.rows = norm ? rows : 1;
  asked.cols = norm ? cols : rows * cols;
  return asked;
}

KnownStrategy known(const std::string& name) {
  for (const KnownStrategy& strategy : knownStrategies()) {
    if (name == strategy.name) return strategy;
  }
  FAIL(name);
  return {};
}

std::string why(const std::string& strategy, const Query& asked, const Facts& facts) {
  return notPossible(known(strategy), asked, facts);
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The lines of the table in the documentation.
std::vector<std::string> tableOfReasons() {
  struct Case {
    const char* file;
    int ranks;
    const char* what;
    bool norm;
  };
  const Case cases[] = {{"hgx-h200", 8, "8 ranks, HGX H200, with a norm", true},
                        {"gb200-nvl72", 8, "8 ranks, NVL72, with a norm", true},
                        {"gb200-nvl72", 8, "8 ranks, NVL72, plain", false},
                        {"pcie-l40s", 8, "8 ranks, L40S over PCIe, with a norm", true},
                        {"cpu-2-sockets", 4, "4 ranks, HOST, plain", false}};
  std::vector<std::string> lines;
  for (const KnownStrategy& strategy : knownStrategies()) {
    for (const Case& one : cases) {
      const Facts facts = paperFacts(shippedTopology(one.file), one.ranks);
      const Reason reason = notPossible(strategy, query(64, 8192, one.norm), facts);
      std::string verdict = reason.empty() ? "eligible" : reason;
      if (reason.empty() && strategy.row->byNameOnly != nullptr) {
        verdict += ", " + strategy.row->byNameOnly(query(64, 8192, one.norm), facts);
      }
      lines.push_back(fmt::format("| {} | {} | {} |", strategy.name, one.what, verdict));
    }
  }
  return lines;
}

}  // namespace

TEST_CASE("eligibility: within a node, across nodes, without peer access", "[eligibility]") {
  const Query asked = query(64, 8192, true);
  for (const char* name : {"ONESHOT", "TWOSHOT", "MIN_LATENCY"}) {
    INFO(name);
    CHECK(why(name, asked, paperFacts(shippedTopology("hgx-h200"), 8)) == "");
    CHECK(why(name, asked, paperFacts(shippedTopology("cpu-2-sockets"), 8)) == "");
    CHECK(why(name, asked, paperFacts(shippedTopology("gb200-nvl72"), 4)) == "");
    CHECK(why(name, asked, paperFacts(shippedTopology("gb200-nvl72"), 8)) ==
          fmt::format("{} needs all ranks on one node, and these 8 are on 2: memory is mapped within a node only.",
                      name));
    Topology cut = shippedTopology("hgx-h200");
    for (TopologyLink& link : cut.nodes[0].links) {
      if (link.first == 2 && link.second == 5) link.facts.peerAccess = false;
    }
    CHECK(why(name, asked, paperFacts(cut, 5)) == "");
    CHECK(has(why(name, asked, paperFacts(cut, 6)), "rank 2 and rank 5 have no peer access."));
  }
}

TEST_CASE("eligibility: windows are asked for only where memory can be mapped at all", "[eligibility]") {
  const Query asked = query(64, 8192, true);
  CHECK(has(why("UB", asked, paperFacts(shippedTopology("hgx-h200"), 8)), "input in a window"));
  CHECK(has(why("UB", asked, paperFacts(shippedTopology("gb200-nvl72"), 8)), "all ranks on one node"));
}

TEST_CASE("eligibility: every strategy over generations and multicast has a reason or a row", "[eligibility]") {
  // What must stay true whatever is added: AUTO's choice is eligible, reasons are sentences, and multicast is asked for
  // by those only that use it.
  for (const int sm : {75, 80, 86, 89, 90, 100, 103, 120}) {
    for (const bool multicast : {false, true}) {
      Topology topology = shippedTopology("hgx-h200");
      for (TopologyGpu& gpu : topology.nodes[0].gpus) {
        gpu.sm = sm;
        gpu.multicast = multicast;
      }
      for (const bool norm : {false, true}) {
        const Facts facts = paperFacts(topology, 8);
        const Query asked = query(16, 4096, norm);
        INFO("sm " << sm << ", multicast " << multicast << ", norm " << norm);
        for (const KnownStrategy& strategy : knownStrategies()) {
          const Reason reason = notPossible(strategy, asked, facts);
          INFO(strategy.name << ": " << reason);
          if (strategy.row == nullptr) CHECK(reason.starts_with("not in this version"));
          if (!reason.empty()) CHECK(reason.back() == '.');
          const bool uses = has(strategy.mechanism, "switch");
          if (!multicast && sm >= 90 && !(norm && std::string(strategy.name) == "SYMM_MEM")) {
            CHECK(has(reason, "multicast objects") == uses);
          }
        }
        const bool old = sm < 80;
        CHECK(has(why("ONESHOT", asked, facts), "needs compute capability 8.0, and the oldest GPU has 7.5.") == old);
        if (!old) CHECK(chooseStrategy(asked, facts).eligible(asked, facts) == "");
      }
    }
  }
}

TEST_CASE("eligibility: what the strategies need that this version does not have", "[eligibility]") {
  const Query asked = query(64, 8192, true);
  const Facts rack = paperFacts(shippedTopology("gb200-nvl72"), 8);
  const Facts pcie = paperFacts(shippedTopology("pcie-l40s"), 8);
  const Facts host = paperFacts(shippedTopology("cpu-2-sockets"), 2);
  struct Expected {
    const char* strategy;
    const Facts& facts;
    const char* words;
  };
  const Expected table[] = {
      {"MNNVL", rack, "not in this version; these ranks and this call have what it needs."},
      {"MNNVL", paperFacts(shippedTopology("dgx-b200"), 8), "several nodes, and these are all on one"},
      {"MNNVL", pcie, "needs compute capability 9.0, and the oldest GPU has 8.9"},
      {"NCCL_SYMMETRIC", pcie, "between some of these there is only system"},
      {"MULTICAST_FUSED", pcie, "needs compute capability 9.0, and the oldest GPU has 8.9"},
      {"SYMM_MEM", rack, "plain all-reduces only"},
      {"HIERARCHICAL", host, "several nodes"},
  };
  for (const Expected& expected : table) {
    if (known(expected.strategy).row != nullptr) continue;
    INFO(expected.strategy << ": " << why(expected.strategy, asked, expected.facts));
    CHECK(has(why(expected.strategy, asked, expected.facts), expected.words));
  }
  CHECK(needCuda("X", host) == "X needs GPUs, and this is a HOST communicator.");
  CHECK(has(needFloats("X",
                       [] {
                         Query ints = query(1, 1, false);
                         ints.dtype = fcclInt32;
                         return ints;
                       }()),
            "sums of fcclFloat32"));
}

TEST_CASE("eligibility: LOWPRECISION by name everywhere, and never by AUTO", "[eligibility]") {
  const Facts pcie = paperFacts(shippedTopology("pcie-l40s"), 8);
  const StrategyRow& row = *known("LOWPRECISION").row;
  REQUIRE(row.byNameOnly != nullptr);
  for (const char* name : {"hgx-h200", "pcie-l40s", "cpu-2-sockets", "dgx-h100"}) {
    const Facts facts = paperFacts(shippedTopology(name), 4);
    for (const bool norm : {false, true}) {
      for (const int64_t tokens : {1, 64, 127, 128, 4096}) {
        const Query asked = query(tokens, 8192, norm);
        CHECK(why("LOWPRECISION", asked, facts) == "");
        CHECK(chooseStrategy(asked, facts).id != fcclStrategyLowPrecision);
        const Reason reason = row.byNameOnly(asked, facts);
        INFO(name << ", " << tokens << " tokens: " << reason);
        CHECK(reason.starts_with("by name only, since it rounds to FP8"));
        CHECK(reason.back() == '.');
        // 2 MiB are 128 tokens.
        const bool suited = std::string(name) == "pcie-l40s" && tokens >= 128;
        CHECK(has(reason, "this is what it is for") == suited);
      }
    }
  }
  CHECK(has(row.byNameOnly(query(127, 8192, true), pcie), "2097152 bytes and more, and this call has 2080768."));
  CHECK(has(row.byNameOnly(query(128, 8192, true), paperFacts(shippedTopology("hgx-h200"), 8)),
            "the slowest way between two of these is nvswitch."));
  CHECK(has(row.byNameOnly(query(128, 8192, true), paperFacts(shippedTopology("cpu-2-sockets"), 2)),
            "HOST communicator."));
  CHECK(has(why("LOWPRECISION", query(64, 8192, true), paperFacts(shippedTopology("gb200-nvl72"), 8)),
            "all ranks on one node"));
  // The other strategies may be taken by AUTO.
  for (const StrategyRow& other : strategies()) {
    CHECK((other.byNameOnly == nullptr) == (other.id != fcclStrategyLowPrecision));
  }
}

TEST_CASE("eligibility: docs/selection.md has every sentence", "[eligibility]") {
  std::ostringstream document;
  document << std::ifstream(std::string(FCCL_SOURCE_DIR) + "/docs/selection.md").rdbuf();
  const std::string text = document.str();
  std::string missing;
  for (const std::string& line : tableOfReasons()) {
    if (!has(text, line)) missing += line + "\n";
  }
  INFO("lines that docs/selection.md lacks:\n" << missing);
  CHECK(missing == "");
  for (const KnownStrategy& strategy : knownStrategies()) {
    INFO(strategy.name << ": " << strategy.mechanism);
    CHECK(has(text, strategy.mechanism));
  }
}
