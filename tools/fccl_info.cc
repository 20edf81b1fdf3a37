// fccl-info: what FCCL knows of a machine, this one or one of a topology file, and what it would do on it.
//   fccl-info                                                            this machine
//   fccl-info --topo gb200-nvl72.json --ranks 8 --tokens 64 --hidden 8192 --pattern residual_rms_norm_quant_nvfp4
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/environment.h"
#include "lib/asked_call.h"
#include "lib/config.h"
#include "tools/strategy_map.h"
#include "tools/words.h"
#include "tuner/compat_trtllm.h"
#include "tuner/explain.h"
#include "tuner/paper_facts.h"
#include "tuner/patterns.h"
#include "tuner/static_table.h"
#include "tuner/tuning_file.h"

namespace fccl {
namespace {

using namespace tools;
using Json = nlohmann::json;

struct Words {
  std::string topology;
  int ranks = 0;
  int64_t tokens = 0;
  int64_t hidden = 8192;
  std::string pattern = "residual_rms_norm";
  std::string dtype = "bf16";
  std::string strategy = "auto";
  std::string compat;
  bool windows = false;
  bool json = false;
  std::string plot;
  std::string tuningFile;
};

fcclQuery_t askedOf(const Words& words) {
  fcclQuery_t asked = FCCL_QUERY_INITIALIZER;
  asked.pattern = patternOf(words.pattern);
  asked.dtype = dtypeOf(words.dtype);
  asked.tokens = std::max<int64_t>(1, words.tokens);
  asked.hidden = words.hidden;
  asked.inputInWindow = asked.outputInWindow = words.windows ? 1 : 0;
  asked.strategy = strategyOf(words.strategy);
  return asked;
}

Topology topologyOf(const Words& words) {
  if (!words.topology.empty()) return valueOf(readTopology(words.topology));
  const Environment environment = valueOf(Environment::read());
  return environment.topologyFile ? valueOf(readTopology(*environment.topologyFile)) : detectTopology();
}

// The tuning file in use, with what it has for a topology.
struct Tuned {
  std::string path;   // empty: none is named
  std::string wrong;  // why nothing can be read there, a sentence
  std::vector<std::pair<TuningMachine, TuningTable>> here;
};

Tuned tunedOn(const Words& words, const Topology& topology) {
  Tuned tuned;
  const Environment environment = valueOf(Environment::read());
  tuned.path = words.tuningFile.empty() ? environment.tuningFile.value_or("") : words.tuningFile;
  if (tuned.path.empty()) return tuned;
  const Result<TuningFile> file = TuningFile::read(tuned.path);
  tuned.wrong = file.status().message();
  // To a communicator that is as good as an empty one; who looks here may have mistyped it.
  if (file.ok() && !std::filesystem::exists(tuned.path)) tuned.wrong = "there is no such file yet.";
  if (!file.ok()) return tuned;
  for (const auto& [machine, table] : file.value().machines()) {
    if (machine.topology != topologySignature(topology) || machine.version != libraryVersion()) continue;
    tuned.here.emplace_back(machine, table);
  }
  return tuned;
}

// Whether these ranks, with default settings, decide by it.
bool isOf(const TuningMachine& machine, const Facts& facts) {
  const Options defaults;
  const int workspace = facts.device == fcclDeviceCuda ? defaults.cudaWorkspaceBytes : defaults.slotBytes;
  return machine.device == facts.device && machine.ranks == facts.ranks &&
         machine.ranksPerDevice == facts.ranksPerDevice && machine.workspaceBytes == static_cast<size_t>(workspace);
}

Facts factsOf(const Topology& topology, int ranks, const Tuned& tuned) {
  Facts facts = paperFacts(topology, ranks);
  for (const auto& [machine, table] : tuned.here) {
    if (isOf(machine, facts)) facts.tuned = std::make_shared<const TuningTable>(table);
  }
  return facts;
}

void printTuning(const Tuned& tuned, const Facts& facts) {
  if (tuned.path.empty()) {
    std::printf("tuning file: none; FCCL_TUNING_FILE or --tuning names one\n");
    return;
  }
  std::printf("tuning file: %s\n", tuned.path.c_str());
  if (!tuned.wrong.empty()) std::printf("  ignored: %s\n", tuned.wrong.c_str());
  if (tuned.wrong.empty() && tuned.here.empty()) std::printf("  readable, nothing for this machine and version\n");
  for (const auto& [machine, table] : tuned.here) {
    std::printf("  %s: %zu points in %zu series%s\n", describe(machine).c_str(), table.points(), table.series().size(),
                isOf(machine, facts) ? ", for these ranks" : "");
  }
}

Json jsonOf(const Tuned& tuned, const Facts& facts) {
  if (tuned.path.empty()) return nullptr;
  Json json = {{"path", tuned.path}, {"readable", tuned.wrong.empty()}, {"here", Json::array()}};
  if (!tuned.wrong.empty()) json["ignored"] = tuned.wrong;
  for (const auto& [machine, table] : tuned.here) {
    json["here"].push_back(
        {{"group", describe(machine)}, {"points", table.points()}, {"forTheseRanks", isOf(machine, facts)}});
  }
  return json;
}

Json jsonOf(const Explanation& explanation) {
  Json json = {{"call", explanation.call}, {"steps", explanation.steps}, {"choice", nullptr}};
  if (!explanation.choice.empty()) json["choice"] = explanation.choice;
  for (const ExplainedStrategy& strategy : explanation.strategies) {
    Json one = {{"name", strategy.name}, {"eligible", strategy.reason.empty()}};
    if (strategy.reason.empty()) one["workspaceBytes"] = strategy.workspaceBytes;
    if (!strategy.reason.empty()) one["reason"] = strategy.reason;
    if (!strategy.byNameOnly.empty()) one["byNameOnly"] = strategy.byNameOnly;
    if (strategy.cost) one["modelMicroseconds"] = strategy.cost->total();
    json["strategies"].push_back(std::move(one));
  }
  return json;
}

void printCompat(const Words& words, const fcclQuery_t& asked, const Facts& facts) {
  const CompatTrace trace = trtllmTrace(facts, asked.pattern, asked.tokens, asked.hidden, asked.dtype);
  if (words.json) {
    const Json json = {{"call", describeCall(asked, facts.ranks)},
                       {"compat", "trtllm"},
                       {"steps", trace.steps},
                       {"choice", trace.choice}};
    std::printf("%s\n", json.dump(1).c_str());
    return;
  }
  std::printf("%s, as TensorRT-LLM decides\n", describeCall(asked, facts.ranks).c_str());
  int number = 1;
  for (const std::string& step : trace.steps) std::printf("%2d. %s\n", number++, step.c_str());
  std::printf("%2d. -> %s\n", number, trace.choice);
}

Explanation explained(const fcclQuery_t& asked, const Facts& facts) {
  return explain(describeCall(asked, facts.ranks), valueOf(queryOf(asked)), facts, asked.strategy);
}

void printDecision(const Words& words, const Topology& topology) {
  const fcclQuery_t asked = askedOf(words);
  const Facts facts = factsOf(topology, words.ranks, tunedOn(words, topology));
  if (!words.compat.empty()) return printCompat(words, asked, facts);
  const Explanation explanation = explained(asked, facts);
  if (words.json) {
    std::printf("%s\n", jsonOf(explanation).dump(1).c_str());
  } else {
    std::printf("%s", explanation.text().c_str());
  }
}

// A call of each kind, to show what these ranks can do.
std::vector<Explanation> samples(const Words& words, const Facts& facts) {
  std::vector<fcclFusionPattern_t> patterns = {patternOf(words.pattern)};
  if (patterns.front() != fcclPatternAllReduce) patterns.push_back(fcclPatternAllReduce);
  std::vector<Explanation> all;
  for (const fcclFusionPattern_t pattern : patterns) {
    fcclQuery_t asked = askedOf(words);
    asked.pattern = pattern;
    asked.tokens = 64;
    all.push_back(explained(asked, facts));
  }
  return all;
}

std::string describeRanks(const Facts& facts) {
  if (facts.device == fcclDeviceHost) {
    return fmt::format("{} on HOST, since there is no GPU; --ranks asks about another number", facts.ranks);
  }
  if (facts.ranksPerDevice > 1) return fmt::format("{}, up to {} on a GPU", facts.ranks, facts.ranksPerDevice);
  return fmt::format("{}, {} on a GPU of its own", facts.ranks, facts.ranks == 1 ? "it is" : "each");
}

void printMachine(const Words& words, const Topology& topology) {
  const Tuned tuned = tunedOn(words, topology);
  const Facts facts = factsOf(topology, words.ranks, tuned);
  if (words.json) {
    Json json = {{"version", fmt::format("{}.{}.{}", FCCL_MAJOR, FCCL_MINOR, FCCL_PATCH)},
                 {"topology", Json::parse(topologyJson(topology))},
                 {"signature", topologySignature(topology)},
                 {"tables", Json::array()},
                 {"tuningFile", jsonOf(tuned, facts)},
                 {"device", facts.device == fcclDeviceHost ? "host" : "cuda"},
                 {"ranks", facts.ranks},
                 {"calls", Json::array()}};
    for (const Explanation& call : samples(words, facts)) json["calls"].push_back(jsonOf(call));
    for (const StaticTable& table : staticTables()) json["tables"].push_back(table.name);
    std::printf("%s\n", json.dump(1).c_str());
    return;
  }
  std::printf("FCCL %d.%d.%d\n%ssignature: %s\n", FCCL_MAJOR, FCCL_MINOR, FCCL_PATCH,
              describeTopology(topology).c_str(), topologySignature(topology).c_str());
  for (const StaticTable& table : staticTables()) {
    std::printf("table %s: %s, %zu cells\n", table.name, table.source, table.cells.size());
  }
  printTuning(tuned, facts);
  std::printf("ranks: %s\n", describeRanks(facts).c_str());
  for (const Explanation& call : samples(words, facts)) std::printf("\n%s", call.text().c_str());
}

void plot(const Words& words, const Topology& topology) {
  std::vector<int> ranks;
  const int most = std::clamp(topology.gpus(), 8, 72);
  for (int r = 2; r <= most; r *= 2) ranks.push_back(r);
  std::vector<long long> tokens;
  for (long long t = 1; t <= 16384; t *= 2) tokens.push_back(t);
  Words one = words;
  const Tuned tuned = tunedOn(words, topology);
  const auto choose = [&](int rankCount, long long tokenCount) -> std::string {
    one.tokens = tokenCount;
    const fcclQuery_t asked = askedOf(one);
    const Facts facts = factsOf(topology, rankCount, tuned);
    if (!words.compat.empty()) {
      return trtllmTrace(facts, asked.pattern, asked.tokens, asked.hidden, asked.dtype).choice;
    }
    const Decision decision = decide(valueOf(queryOf(asked)), facts);
    return decision.row == nullptr ? "" : decision.row->name;
  };
  const std::string title = fmt::format("{}, {}, hidden {}, {}{}", topology.name,
                                        kPatterns[static_cast<size_t>(patternOf(words.pattern))].name, words.hidden,
                                        words.dtype, words.compat.empty() ? "" : ", as TensorRT-LLM decides");
  std::ofstream file(words.plot);
  file << tools::svgOf(tools::makeMap(title, ranks, tokens, choose));
  if (!file.flush()) throw std::invalid_argument(fmt::format("{} cannot be written.", words.plot));
}

void run(Words words) {
  const Topology topology = topologyOf(words);
  if (!words.plot.empty()) return plot(words, topology);
  if (words.ranks == 0) words.ranks = topology.gpus() > 0 ? topology.gpus() : 2;
  if (words.tokens == 0) return printMachine(words, topology);
  printDecision(words, topology);
}

}  // namespace
}  // namespace fccl

int main(int argc, char** argv) {
  fccl::Words words;
  CLI::App app("What FCCL knows of a machine, and which strategy it takes there and why.");
  app.add_option("--topo", words.topology,
                 "a topology file (docs/topology.md); else FCCL_TOPO_FILE, else this machine");
  app.add_option("--ranks", words.ranks, "ranks, one after the other on the GPUs; all GPUs where not given")
      ->check(CLI::Range(1, 72));
  app.add_option("--tokens", words.tokens, "rows of the call to decide on; none: the machine, and what 64 would do")
      ->check(CLI::PositiveNumber);
  app.add_option("--hidden", words.hidden, "columns")->capture_default_str();
  app.add_option("--pattern", words.pattern, "as residual_rms_norm_quant_nvfp4")->capture_default_str();
  app.add_option("--dtype", words.dtype, "as bf16")->capture_default_str();
  app.add_option("--strategy", words.strategy, "by name, to see whether it can do the call")->capture_default_str();
  app.add_flag("--windows", words.windows, "the buffers lie in registered windows");
  app.add_option("--compat", words.compat, "trtllm: what TensorRT-LLM's AUTO answers")
      ->check(CLI::IsMember({"trtllm"}));
  app.add_flag("--json", words.json, "JSON in place of text");
  app.add_option("--tuning", words.tuningFile, "a tuning file; else FCCL_TUNING_FILE");
  app.add_option("--plot", words.plot, "write a map of choices over tokens and ranks (SVG)");
  CLI11_PARSE(app, argc, argv);
  try {
    fccl::run(words);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fccl-info: %s\n", error.what());
    return 1;
  }
}
