#include "tests/perf/timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace fccl::perf {
namespace {

constexpr double kNearNs = 100;
constexpr double kFarNs = 200;
constexpr double kOneCoreNs = 2000;
constexpr double kChangedRatio = 1.5;

std::vector<double> sorted(std::span<const double> samples) {
  std::vector<double> copy(samples.begin(), samples.end());
  std::sort(copy.begin(), copy.end());
  return copy;
}

}  // namespace

double percentile(std::span<const double> samples, double fraction) {
  if (samples.empty()) return std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> ordered = sorted(samples);
  // The small term keeps 0.99 * 100 = 99.00000000000001 from becoming rank 100.
  const double rank = std::ceil(fraction * static_cast<double>(ordered.size()) - 1e-9);
  const auto index = static_cast<size_t>(std::clamp(rank, 1.0, static_cast<double>(ordered.size()))) - 1;
  return ordered[index];
}

double median(std::span<const double> samples) {
  if (samples.empty()) return std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> ordered = sorted(samples);
  const size_t middle = ordered.size() / 2;
  return ordered.size() % 2 == 1 ? ordered[middle] : (ordered[middle - 1] + ordered[middle]) / 2;
}

double smallest(std::span<const double> samples) {
  if (samples.empty()) return std::numeric_limits<double>::quiet_NaN();
  return *std::min_element(samples.begin(), samples.end());
}

Bandwidth allReduceBandwidth(size_t bytes, double microseconds, int ranks) {
  const double algorithm = static_cast<double>(bytes) / (microseconds * 1e3);
  return {algorithm, algorithm * 2.0 * (ranks - 1) / ranks};
}

Distance distanceOf(double pingNs) {
  if (std::isnan(pingNs)) return Distance::kNone;
  if (pingNs < kNearNs) return Distance::kNear;
  if (pingNs > kOneCoreNs) return Distance::kOneCore;
  return pingNs > kFarNs ? Distance::kFar : Distance::kBetween;
}

const char* nameOf(Distance distance) {
  switch (distance) {
    case Distance::kNone: return "-";
    case Distance::kNear: return "near";
    case Distance::kBetween: return "between";
    case Distance::kFar: return "far";
    case Distance::kOneCore: return "one core";
  }
  return "-";
}

bool PingPair::changed() const { return std::max(beforeNs, afterNs) > kChangedRatio * std::min(beforeNs, afterNs); }

std::string PingPair::text() const {
  const Distance distance = distanceOf((beforeNs + afterNs) / 2);
  if (distance == Distance::kNone) return "-";
  return fmt::format("{} {:.0f}/{:.0f} ns", changed() ? "state changed" : nameOf(distance), beforeNs, afterNs);
}

}  // namespace fccl::perf
