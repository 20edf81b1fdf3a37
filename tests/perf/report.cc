#include "tests/perf/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

namespace fccl::perf {
namespace {

// Columns of one place; the heads below have the same widths.
std::string placeText(const Series* series, size_t bytes, int ranks) {
  if (series == nullptr) return fmt::format("{:>9} {:>7} {:>7} {:>6}", "-", "-", "-", "-");
  const double time = series->medianUs();
  const Bandwidth bandwidth = allReduceBandwidth(bytes, time, ranks);
  return fmt::format("{:>9.2f} {:>7.2f} {:>7.2f} {:>6}", time, bandwidth.algorithm, bandwidth.bus,
                     series->wrong < 0 ? "N/A" : std::to_string(series->wrong));
}

std::string p99Text(const Series* series) {
  return series == nullptr ? fmt::format("{:>9}", "-") : fmt::format("{:>9.2f}", series->p99Us());
}

// ", ONESHOT" where AUTO was asked for, which took that.
std::string chosenText(const Case& c, const Series* out, const Series* in) {
  const std::string outOfPlace = out == nullptr ? "" : out->chosen;
  const std::string inPlace = in == nullptr ? outOfPlace : in->chosen;
  if (c.strategy != fcclStrategyAuto || (outOfPlace.empty() && inPlace.empty())) return "";
  if (outOfPlace.empty() || outOfPlace == inPlace) return fmt::format(", {}", inPlace);
  return fmt::format(", {} (in place {})", outOfPlace, inPlace);
}

std::string ratioText(double ratio) { return std::isnan(ratio) ? "-" : fmt::format("{:.3f}", ratio); }

std::string peersText(const Row& row, int ranks) {
  std::string text;
  std::vector<std::string> done{"fccl"};
  for (const Series& series : row.series) {
    if (std::find(done.begin(), done.end(), series.variant) != done.end()) continue;
    done.push_back(series.variant);
    const Series* out = findSeries(row, series.variant, false);
    const Series* in = findSeries(row, series.variant, true);
    text += fmt::format("#{:>53} {}  {}  {} {}   fccl/{} {} {}\n", series.variant, placeText(out, row.c.bytes(), ranks),
                        placeText(in, row.c.bytes(), ranks), p99Text(out), p99Text(in), series.variant,
                        ratioText(ratioTo(row, series.variant, false)), ratioText(ratioTo(row, series.variant, true)));
  }
  return text;
}

}  // namespace

std::string headText(const RunFacts& facts) {
  std::string text;
  text +=
      fmt::format("# fccl-perf {} ({}), {}; {} ranks as {}{}, {}\n", facts.fcclVersion, facts.git, facts.date,
                  facts.ranks, facts.launch, facts.pinned ? ", pinned" : "", facts.gpus.empty() ? "HOST" : facts.gpus);
  text += fmt::format("# {}, {} of {} CPUs; {}\n", facts.machine.cpu, facts.machine.usableCpus, facts.machine.cpus,
                      facts.mpiVersion.empty() ? "no MPI" : facts.mpiVersion);
  if (facts.gpus.empty()) {
    text += fmt::format(
        "# time: median over {} rounds of the slowest rank's mean per call, input rewritten before each call\n",
        facts.measure.rounds);
    text += "# p99: of single calls, slowest rank. state: one-way flag time between ranks 0 and 1 before/after\n";
  } else {
    text += fmt::format(
        "# time: median over {} replays of a graph of {} calls, per call of the slowest rank; {} sets of buffers, not "
        "rewritten\n# p99: of replays{}{}\n",
        facts.measure.rounds, facts.graphCalls, facts.sets, facts.nccl.empty() ? "" : ". NCCL ", facts.nccl);
  }
  text += fmt::format("#{:>53} {:^32}  {:^32}  {:^19}\n", "", "out-of-place", "in-place", "p99 (us)");
  text += fmt::format("#{:>12} {:>13} {:>10} {:>7} {:>7}", "size", "count", "type", "redop", "root");
  for (int place = 0; place < 2; place++) {
    text += fmt::format("{}{:>9} {:>7} {:>7} {:>6}", place == 0 ? " " : "  ", "time", "algbw", "busbw", "#wrong");
  }
  text += fmt::format("  {:>9} {:>9}   state\n", "out", "in");
  text += fmt::format("#{:>12} {:>13} {:>10} {:>7} {:>7}", "(B)", "(elements)", "", "", "");
  for (int place = 0; place < 2; place++) {
    text += fmt::format("{}{:>9} {:>7} {:>7} {:>6}", place == 0 ? " " : "  ", "(us)", "(GB/s)", "(GB/s)", "");
  }
  return text + "\n";
}

std::string rowText(const Row& row, int ranks) {
  const Case& c = row.c;
  const Series* out = findSeries(row, "fccl", false);
  const Series* in = findSeries(row, "fccl", true);
  std::string text = fmt::format("{:>13} {:>13} {:>10} {:>7} {:>7} {}  {}  {} {}   {}", c.bytes(), c.count(),
                                 nameOf(c.dtype), nameOf(c.op), -1, placeText(out, c.bytes(), ranks),
                                 placeText(in, c.bytes(), ranks), p99Text(out), p99Text(in), row.ping.text());
  if (row.attempts > 1) text += fmt::format(", attempt {}", row.attempts);
  if (c.fused()) text += fmt::format(", {} x {}", c.tokens, c.hidden);
  if (c.windows) text += ", windows";
  if (c.sharded) text += ", sharded residual";
  text += chosenText(c, out, in);
  return text + "\n" + peersText(row, ranks);
}

std::string footText(const std::vector<Row>& rows, int ranks) {
  double bus = 0;
  int measured = 0;
  bool checked = false;
  for (const Row& row : rows) {
    for (const Series& series : row.series) {
      checked = checked || series.wrong >= 0;
      if (series.variant != "fccl") continue;
      bus += allReduceBandwidth(row.c.bytes(), series.medianUs(), ranks).bus;
      measured++;
    }
  }
  const long long wrong = totalWrong(rows);
  return fmt::format("# Out of bounds values : {}\n# Avg bus bandwidth    : {:.4f}\n",
                     checked ? fmt::format("{} {}", wrong, wrong == 0 ? "OK" : "FAILED") : "not checked",
                     measured == 0 ? 0.0 : bus / measured);
}

const Series* findSeries(const Row& row, const std::string& variant, bool inPlace) {
  for (const Series& series : row.series) {
    if (series.variant == variant && series.inPlace == inPlace) return &series;
  }
  return nullptr;
}

double ratioTo(const Row& row, const std::string& peer, bool inPlace) {
  const Series* mine = findSeries(row, "fccl", inPlace);
  const Series* theirs = findSeries(row, peer, inPlace);
  if (mine == nullptr || theirs == nullptr) return std::numeric_limits<double>::quiet_NaN();
  return mine->medianUs() / theirs->medianUs();
}

long long totalWrong(const std::vector<Row>& rows) {
  long long wrong = 0;
  for (const Row& row : rows) {
    for (const Series& series : row.series) wrong += std::max(series.wrong, 0LL);
  }
  return wrong;
}

nlohmann::json jsonOf(const RunFacts& facts) {
  nlohmann::json caches = nlohmann::json::array();
  for (const Cache& cache : facts.machine.caches) {
    caches.push_back({{"name", cache.name}, {"size", cache.size}, {"shared_by_cpus", cache.shared}});
  }
  nlohmann::json json = {
      {"program", "fccl-perf"},
      {"format", 1},
      {"date", facts.date},
      {"command", facts.command},
      {"git", facts.git},
      {"device", facts.gpus.empty() ? "host" : "cuda"},
      {"ranks", facts.ranks},
      {"launch", facts.launch},
      {"pinned", facts.pinned},
      {"rounds", facts.measure.rounds},
      {"warmup", facts.measure.warmup},
      {"versions", {{"fccl", facts.fcclVersion}, {"compiler", facts.compiler}}},
      {"separate_epilogue", facts.epilogueIsa},
      {"hardware",
       {{"cpu", facts.machine.cpu},
        {"sockets", facts.machine.sockets},
        {"cpus", facts.machine.cpus},
        {"usable_cpus", facts.machine.usableCpus},
        {"memory_mib", facts.machine.memoryMiB},
        {"kernel", facts.machine.kernel},
        {"caches", caches}}},
  };
  if (!facts.gpus.empty()) {
    json["hardware"]["gpus"] = facts.gpus;
    json["graph_calls"] = facts.graphCalls;
    json["buffer_sets"] = facts.sets;
  }
  if (!facts.nccl.empty()) json["versions"]["nccl"] = facts.nccl;
  if (!facts.mpiVersion.empty()) json["versions"]["mpi"] = facts.mpiVersion;
  return json;
}

nlohmann::json jsonOf(const Row& row, int ranks) {
  const Case& c = row.c;
  nlohmann::json series = nlohmann::json::array();
  nlohmann::json ratios = nlohmann::json::object();
  for (const Series& one : row.series) {
    const Bandwidth bandwidth = allReduceBandwidth(c.bytes(), one.medianUs(), ranks);
    const char* place = one.inPlace ? "in" : "out";
    nlohmann::json entry = {
        {"variant", one.variant},
        {"place", place},
        {"iters", one.iters},
        {"median_us", one.medianUs()},
        {"min_us", one.minUs()},
        {"algbw_gbs", bandwidth.algorithm},
        {"busbw_gbs", bandwidth.bus},
        {"round_us", one.roundUs},
        {"single_calls", {{"samples", one.callUs.size()}, {"median_us", median(one.callUs)}, {"p99_us", one.p99Us()}}},
    };
    if (one.wrong >= 0) entry["wrong"] = one.wrong;
    if (!one.chosen.empty()) entry["chosen"] = one.chosen;
    series.push_back(std::move(entry));
    if (one.variant != "fccl") ratios[one.variant][place] = ratioTo(row, one.variant, one.inPlace);
  }
  return {
      {"case",
       {{"text", describe(c)},
        {"pattern", nameOf(c.pattern)},
        {"dtype", nameOf(c.dtype)},
        {"op", nameOf(c.op)},
        {"strategy", nameOf(c.strategy)},
        {"tokens", c.tokens},
        {"hidden", c.hidden},
        {"count", c.count()},
        {"bytes", c.bytes()},
        {"windows", c.windows},
        {"sharded_residual", c.sharded}}},
      {"ping_ns", {{"before", row.ping.beforeNs}, {"after", row.ping.afterNs}}},
      {"state", nameOf(distanceOf((row.ping.beforeNs + row.ping.afterNs) / 2))},
      {"state_changed", row.ping.changed()},
      {"attempts", row.attempts},
      {"series", std::move(series)},
      {"fccl_over_peer", std::move(ratios)},
  };
}

std::string commandText(int argc, const char* const* argv) {
  const std::string_view program = argc > 0 ? argv[0] : "fccl-perf";
  std::string text(program.substr(program.rfind('/') == std::string_view::npos ? 0 : program.rfind('/') + 1));
  for (int i = 1; i < argc; i++) {
    const std::string_view argument = argv[i];
    if (argument == "--json") {
      i++;
      continue;
    }
    if (argument.rfind("--json=", 0) == 0) continue;
    text += fmt::format(" {}", argument);
  }
  return text;
}

}  // namespace fccl::perf
