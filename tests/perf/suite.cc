#include "tests/perf/suite.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/perf/report.h"

namespace fccl::perf {
namespace {

Case plain(size_t bytes, bool windows = false) {
  Case c;
  c.hidden = static_cast<int64_t>(bytes / bytesOf(c.dtype));
  c.windows = windows;
  return c;
}

Case fused(int64_t tokens) {
  Case c;
  c.pattern = fcclPatternResidualRmsNorm;
  c.dtype = fcclBfloat16;
  c.tokens = tokens;
  c.hidden = 8192;
  return c;
}

// FCCL's result and the peer's for one goal.
struct Standing {
  const Row& row;
  double ratio;
  bool met;
};

Standing standingOf(const Goal& goal, const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    if (describe(row.c) != describe(goal.c)) continue;
    const double ratio = ratioTo(row, goal.peer, false);
    return {row, ratio, ratio <= goal.limit};
  }
  throw std::logic_error(fmt::format("no result for the goal '{}'", describe(goal.c)));
}

}  // namespace

std::vector<Goal> hostGoals(int ranks) {
  constexpr size_t kKiB = 1024;
  constexpr size_t kMiB = 1024 * kKiB;
  if (ranks == 4 || ranks == 8) return {{plain(16 * kKiB), "mpi", 0.25}, {plain(kMiB), "mpi", 0.9}};
  if (ranks != 2)
    throw std::invalid_argument(fmt::format("--suite host-goals has goals for 2, 4 and 8 ranks, not {}.", ranks));
  return {
      {plain(16 * kKiB), "mpi", 0.25},  {plain(kMiB), "mpi", 0.60},   {plain(16 * kMiB), "mpi", 0.55},
      {plain(kMiB, true), "mpi", 0.45}, {fused(1), "mpi-fp32", 0.27}, {fused(1), "mpi-op", 0.33},
      {fused(64), "mpi-fp32", 0.42},    {fused(64), "mpi-op", 0.75},  {fused(1024), "mpi-fp32", 0.25},
      {fused(1024), "mpi-op", 0.73},
  };
}

std::vector<Case> casesOf(const std::vector<Goal>& goals) {
  std::vector<Case> cases;
  for (const Goal& goal : goals) {
    if (cases.empty() || describe(cases.back()) != describe(goal.c)) cases.push_back(goal.c);
  }
  return cases;
}

std::string goalsText(const std::vector<Goal>& goals, const std::vector<Row>& rows) {
  std::string text = fmt::format("# {:<38} {:>10}  {:<9} {:>10} {:>7} {:>7}  {:<7} state\n", "goal", "fccl (us)",
                                 "peer", "peer (us)", "ratio", "limit", "verdict");
  int met = 0;
  for (const Goal& goal : goals) {
    const Standing standing = standingOf(goal, rows);
    met += standing.met ? 1 : 0;
    text += fmt::format("# {:<38} {:>10.2f}  {:<9} {:>10.2f} {:>7.3f} {:>7.2f}  {:<7} {}\n", describe(goal.c),
                        findSeries(standing.row, "fccl", false)->medianUs(), goal.peer,
                        findSeries(standing.row, goal.peer, false)->medianUs(), standing.ratio, goal.limit,
                        standing.met ? "MET" : "MISSED", standing.row.ping.text());
  }
  return text + fmt::format("# {} of {} goals met\n", met, goals.size());
}

nlohmann::json goalsJson(const std::vector<Goal>& goals, const std::vector<Row>& rows) {
  nlohmann::json json = nlohmann::json::array();
  for (const Goal& goal : goals) {
    const Standing standing = standingOf(goal, rows);
    json.push_back({{"case", describe(goal.c)},
                    {"peer", goal.peer},
                    {"limit", goal.limit},
                    {"ratio", standing.ratio},
                    {"met", standing.met},
                    {"state_changed", standing.row.ping.changed()}});
  }
  return json;
}

}  // namespace fccl::perf
