#ifndef EXAMPLES_COMMON_TIMING_H_
#define EXAMPLES_COMMON_TIMING_H_

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

inline double nowUs() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The smallest sample that at least `share` of the samples do not exceed; 0 of no samples.
inline double percentile(std::vector<double> samples, double share) {
  if (samples.empty()) return 0;
  const double place = std::ceil(share * static_cast<double>(samples.size())) - 1;
  const auto wanted = samples.begin() + static_cast<std::ptrdiff_t>(std::max(place, 0.0));
  std::nth_element(samples.begin(), wanted, samples.end());
  return *wanted;
}

#endif  // EXAMPLES_COMMON_TIMING_H_
