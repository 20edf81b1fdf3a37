// fccl-info: what FCCL knows of a machine, this one or one of a topology file, and what it would do on it.
//   fccl-info                                                            this machine
//   fccl-info --topo gb200-nvl72.json --ranks 8 --tokens 64 --hidden 8192 --pattern residual_rms_norm_nvfp4
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/environment.h"
#include "lib/asked_call.h"
#include "lib/patterns.h"
#include "tools/strategy_map.h"
#include "tuner/compat_trtllm.h"
#include "tuner/explain.h"
#include "tuner/paper_facts.h"
#include "tuner/static_table.h"

namespace fccl {
namespace {

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
};

template <class T>
T valueOf(Result<T> result) {
  if (!result.ok()) throw std::invalid_argument(result.status().message());
  return std::move(result.value());
}

// "residual_rms_norm_nvfp4" and "RESIDUAL_RMS_NORM_QUANT_NVFP4" are one.
std::string plainWord(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  const size_t quant = text.find("quant_");
  return quant == std::string::npos ? text : text.erase(quant, 6);
}

fcclFusionPattern_t patternOf(const std::string& word) {
  std::string known;
  for (size_t i = 0; i < kPatterns.size(); i++) {
    if (plainWord(kPatterns[i].name) == plainWord(word)) return static_cast<fcclFusionPattern_t>(i);
    known += (i == 0 ? "" : ", ") + plainWord(kPatterns[i].name);
  }
  throw std::invalid_argument(fmt::format("--pattern is {}; it can be {}.", word, known));
}

fcclDataType_t dtypeOf(const std::string& word) {
  if (word == "bf16") return fcclBfloat16;
  if (word == "fp16") return fcclFloat16;
  if (word == "fp32") return fcclFloat32;
  throw std::invalid_argument(fmt::format("--dtype is {}; it can be bf16, fp16 or fp32.", word));
}

fcclStrategy_t strategyOf(const std::string& word) {
  if (plainWord(word) == "auto") return fcclStrategyAuto;
  std::string known = "auto";
  for (const StrategyRow& row : strategies()) {
    if (plainWord(row.name) == plainWord(word)) return row.id;
    known += ", " + plainWord(row.name);
  }
  throw std::invalid_argument(fmt::format("--strategy is {}; it can be {}.", word, known));
}

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

void printDecision(const Words& words, const Topology& topology) {
  const fcclQuery_t asked = askedOf(words);
  const Query query = valueOf(queryOf(asked));
  const Facts facts = paperFacts(topology, words.ranks);
  if (!words.compat.empty()) return printCompat(words, asked, facts);
  const Explanation explanation = explain(describeCall(asked, words.ranks), query, facts, asked.strategy);
  if (words.json) {
    std::printf("%s\n", jsonOf(explanation).dump(1).c_str());
  } else {
    std::printf("%s", explanation.text().c_str());
  }
}

void printMachine(const Words& words, const Topology& topology) {
  if (words.json) {
    Json json = {{"version", fmt::format("{}.{}.{}", FCCL_MAJOR, FCCL_MINOR, FCCL_PATCH)},
                 {"topology", Json::parse(topologyJson(topology))},
                 {"signature", topologySignature(topology)},
                 {"tables", Json::array()}};
    for (const StaticTable& table : staticTables()) json["tables"].push_back(table.name);
    std::printf("%s\n", json.dump(1).c_str());
    return;
  }
  std::printf("FCCL %d.%d.%d\n%ssignature: %s\n", FCCL_MAJOR, FCCL_MINOR, FCCL_PATCH,
              describeTopology(topology).c_str(), topologySignature(topology).c_str());
  for (const StaticTable& table : staticTables()) {
    std::printf("table %s: %s, %zu cells\n", table.name, table.source, table.cells.size());
  }
  std::printf("tuning file: none in this version\n");
}

void plot(const Words& words, const Topology& topology) {
  std::vector<int> ranks;
  const int most = std::clamp(topology.gpus(), 8, 72);
  for (int r = 2; r <= most; r *= 2) ranks.push_back(r);
  std::vector<long long> tokens;
  for (long long t = 1; t <= 16384; t *= 2) tokens.push_back(t);
  Words one = words;
  const auto choose = [&](int rankCount, long long tokenCount) -> std::string {
    one.tokens = tokenCount;
    const fcclQuery_t asked = askedOf(one);
    const Facts facts = paperFacts(topology, rankCount);
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
  if (words.tokens == 0) return printMachine(words, topology);
  if (words.ranks == 0) words.ranks = topology.gpus() > 0 ? topology.gpus() : 2;
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
  app.add_option("--tokens", words.tokens, "rows of the call to decide on")->check(CLI::PositiveNumber);
  app.add_option("--hidden", words.hidden, "columns")->capture_default_str();
  app.add_option("--pattern", words.pattern, "as residual_rms_norm_nvfp4")->capture_default_str();
  app.add_option("--dtype", words.dtype, "bf16, fp16 or fp32")->capture_default_str();
  app.add_option("--strategy", words.strategy, "by name, to see whether it can do the call")->capture_default_str();
  app.add_flag("--windows", words.windows, "the buffers lie in registered windows");
  app.add_option("--compat", words.compat, "trtllm: what TensorRT-LLM's AUTO answers")
      ->check(CLI::IsMember({"trtllm"}));
  app.add_flag("--json", words.json, "JSON in place of text");
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
