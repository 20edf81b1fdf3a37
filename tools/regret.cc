#include "tools/regret.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tuner/patterns.h"

namespace fccl::tools {
namespace {

constexpr double kClose = 1.03;

double timeOf(const RegretRow& row, fcclStrategy_t strategy) {
  const auto found = std::ranges::find(row.times, strategy, &TuningTime::strategy);
  return found == row.times.end() ? std::nan("") : found->mean();
}

// Nearest rank.
double percentile(const std::vector<double>& sorted, double fraction) {
  const auto rank = static_cast<size_t>(std::ceil(fraction * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

std::string columns(const std::vector<RegretRow>& rows, fcclStrategy_t RegretRow::*choice) {
  std::vector<double> regrets;
  for (const RegretRow& row : rows) regrets.push_back(regretOf(row, row.*choice));
  std::ranges::sort(regrets);
  return fmt::format(" {:.3f} | {:.3f} | {:.3f} |", percentile(regrets, 0.5), percentile(regrets, 0.95),
                     regrets.back());
}

std::string line(const std::string& name, const std::vector<RegretRow>& rows) {
  return fmt::format("| {} | {} |{}{}\n", name, rows.size(), columns(rows, &RegretRow::untuned),
                     columns(rows, &RegretRow::tuned));
}

const char* nameOf(fcclStrategy_t strategy) {
  const StrategyRow* row = findStrategy(strategy);
  return row == nullptr ? "none" : row->name;
}

}  // namespace

double regretOf(const RegretRow& row, fcclStrategy_t choice) {
  if (row.times.empty()) return 1;
  return timeOf(row, choice) / std::ranges::min_element(row.times, {}, &TuningTime::mean)->mean();
}

Agreement agreementOf(const std::vector<RegretRow>& rows) {
  size_t same = 0;
  size_t close = 0;
  for (const RegretRow& row : rows) {
    const bool equal = row.tuned == row.tunedBefore;
    const double a = timeOf(row, row.tuned);
    const double b = timeOf(row, row.tunedBefore);
    same += equal ? 1 : 0;
    close += equal || std::max(a, b) <= kClose * std::min(a, b) ? 1 : 0;
  }
  if (rows.empty()) return {};
  const auto all = static_cast<double>(rows.size());
  return {100 * static_cast<double>(same) / all, 100 * static_cast<double>(close) / all};
}

std::string regretText(const std::vector<RegretRow>& rows) {
  if (rows.empty()) return "";
  std::string text =
      "| pattern | calls | untuned: median | 95 % | worst | tuned: median | 95 % | worst |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (size_t pattern = 0; pattern < kPatterns.size(); pattern++) {
    std::vector<RegretRow> some;
    std::ranges::copy_if(rows, std::back_inserter(some),
                         [&](const RegretRow& row) { return static_cast<size_t>(row.call.pattern) == pattern; });
    if (!some.empty()) text += line(kPatterns[pattern].name, some);
  }
  text += line("all", rows);
  const Agreement agreement = agreementOf(rows);
  return text + fmt::format(
                    "Two tunings: {:.1f} % of the calls get the same strategy, {:.1f} % the same or one within "
                    "3 % in time.\n",
                    agreement.same, agreement.close);
}

nlohmann::json regretJson(const std::vector<RegretRow>& rows) {
  nlohmann::json json = nlohmann::json::array();
  for (const RegretRow& row : rows) {
    nlohmann::json one = {{"pattern", kPatterns[static_cast<size_t>(row.call.pattern)].name},
                          {"dtype", host::dtypeName(row.call.dtype)},
                          {"tokens", row.call.tokens},
                          {"hidden", row.call.hidden},
                          {"untuned", nameOf(row.untuned)},
                          {"tuned", nameOf(row.tuned)},
                          {"tunedBefore", nameOf(row.tunedBefore)},
                          {"microseconds", nlohmann::json::array()}};
    for (const TuningTime& time : row.times) {
      one["microseconds"].push_back({{"strategy", nameOf(time.strategy)}, {"warm", time.warm}, {"cold", time.cold}});
    }
    json.push_back(std::move(one));
  }
  return json;
}

}  // namespace fccl::tools
