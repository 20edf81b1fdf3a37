#include "tests/perf/table_maker.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <tuple>

namespace fccl::perf {
namespace {

using Json = nlohmann::json;

constexpr const char* kOps[] = {"NONE", "RESIDUAL_RMS_NORM", "RESIDUAL_RMS_NORM_QUANT_FP8",
                                "RESIDUAL_RMS_NORM_QUANT_NVFP4"};
// Patterns with norm out share their column, and are not asked.
constexpr const char* kPatterns[] = {"all_reduce", "residual_rms_norm", "residual_rms_norm_quant_fp8",
                                     "residual_rms_norm_quant_nvfp4"};

struct CellKey {
  int ranks;
  int op;
  int64_t hidden;
  int64_t tokens;
  auto operator<=>(const CellKey&) const = default;  // NOLINT(modernize-use-nullptr): there is none
};
// Median times of all runs of a strategy.
using Times = std::map<std::string, std::vector<double>>;

std::string upper(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// The strategy that a series timed, or empty where that is not one of the table's: LOWPRECISION is for those who ask
// for it by name.
std::string strategyOf(const std::string& variant, const std::string& strategy) {
  if (variant == "nccl") return "NCCL";
  if (variant == "nccl-symmetric") return "NCCL_SYMMETRIC";
  return variant == "fccl" && strategy != "auto" && strategy != "lowprecision" ? upper(strategy) : "";
}

void takeRow(const std::string& file, int ranks, const Json& row, std::map<CellKey, Times>* cells) {
  const Json& one = row.at("case");
  const auto pattern = std::ranges::find(kPatterns, one.at("pattern").get<std::string>());
  const bool special = one.at("windows").get<bool>() || one.value("sharded_residual", false);
  if (pattern == std::end(kPatterns) || special || one.at("op") != "sum") return;
  const CellKey key{ranks, static_cast<int>(pattern - std::begin(kPatterns)), one.at("hidden").get<int64_t>(),
                    one.at("tokens").get<int64_t>()};
  if (key.tokens <= 0) return;  // by bytes
  for (const Json& series : row.at("series")) {
    const auto variant = series.at("variant").get<std::string>();
    const std::string strategy = strategyOf(variant, one.at("strategy").get<std::string>());
    if (strategy.empty() || series.at("place") != "out") continue;
    if (series.value("wrong", 0LL) != 0) {
      throw std::invalid_argument(fmt::format("{}: {} has wrong results.", file, one.at("text").get<std::string>()));
    }
    // Reports from before fccl-perf asked for it have none.
    const std::string chosen = variant == "fccl" ? series.value("chosen", strategy) : strategy;
    if (chosen != strategy) {
      throw std::invalid_argument(
          fmt::format("{}: {} is a time of {}, not of {}.", file, one.at("text").get<std::string>(), chosen, strategy));
    }
    (*cells)[key][strategy].push_back(series.at("median_us").get<double>());
  }
}

// Empty where there is nothing to choose between, or nothing of FCCL's.
std::string fastest(const Times& times, const std::string& before, double tie) {
  const auto isNccl = [](const auto& entry) { return entry.first.starts_with("NCCL"); };
  if (times.size() < 2 || std::ranges::all_of(times, isNccl)) return "";
  std::string best;
  double least = 0;
  for (const auto& [strategy, medians] : times) {
    const double time = median(medians);
    if (!best.empty() && time >= least) continue;
    best = strategy;
    least = time;
  }
  const auto same = times.find(before);
  return same != times.end() && median(same->second) <= least * (1 + tie) ? before : best;
}

// "2 x NVIDIA H200, CUDA driver 13.0" has "NVIDIA H200".
std::string gpuName(const std::string& gpus) {
  const size_t times = gpus.find(" x ");
  const size_t begin = times == std::string::npos ? 0 : times + 3;
  return gpus.substr(begin, gpus.find(',', begin) - begin);
}

}  // namespace

MadeTable makeTable(const std::vector<std::pair<std::string, Json>>& reports, const TableOptions& options) {
  MadeTable made;
  std::map<CellKey, Times> cells;
  std::string device;
  for (const auto& [file, report] : reports) {
    try {
      if (report.at("program") != "fccl-perf" || report.at("device") != "cuda") {
        throw std::invalid_argument(fmt::format("{}: not a report of fccl-perf --device cuda.", file));
      }
      const std::string gpu = gpuName(report.at("hardware").at("gpus").get<std::string>());
      if (device.empty()) device = gpu;
      if (device != gpu)
        throw std::invalid_argument(fmt::format("{}: {}, but reports before have {}.", file, gpu, device));
      for (const Json& row : report.at("rows")) takeRow(file, report.at("ranks").get<int>(), row, &cells);
    } catch (const Json::exception& error) {
      throw std::invalid_argument(fmt::format("{}: not a report of fccl-perf: {}", file, error.what()));
    }
  }
  made.csv =
      fmt::format("# generation: {}\n# kernels: fccl\n# device: {}\n# source: {}\nranks,op,hidden,tokens,strategy\n",
                  options.generation, device, options.source);
  std::string before;
  CellKey last{};
  for (const auto& [key, times] : cells) {
    const bool continues = std::tie(key.ranks, key.op, key.hidden) == std::tie(last.ranks, last.op, last.hidden);
    const std::string best = fastest(times, continues ? before : "", options.tie);
    if (best.empty()) {
      std::vector<std::string> timed;
      for (const auto& [strategy, medians] : times) timed.push_back(strategy);
      made.notes.push_back(fmt::format("{} ranks, {}, hidden {}, {} tokens: left out, since only {} was timed.",
                                       key.ranks, kOps[key.op], key.hidden, key.tokens, fmt::join(timed, ", ")));
      continue;
    }
    made.csv += fmt::format("{},{},{},{},{}\n", key.ranks, kOps[key.op], key.hidden, key.tokens, best);
    made.cells++;
    before = best;
    last = key;
  }
  return made;
}

}  // namespace fccl::perf
