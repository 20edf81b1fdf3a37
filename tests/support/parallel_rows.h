// Rows shared out among threads, for references of large cases.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace fccl::test {

// Calls body(first, last) for pieces of `piece` rows until all `rows` are through, on every core where there are
// enough elements for that to be quicker.
inline void forRowPieces(int64_t rows, int64_t hidden, int64_t piece,
                         const std::function<void(int64_t first, int64_t last)>& body) {
  constexpr int64_t kWorthThreads = 1 << 20;
  const int64_t cores = rows * hidden < kWorthThreads ? 1 : std::max(1u, std::thread::hardware_concurrency());
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t first; (first = next.fetch_add(piece, std::memory_order_relaxed)) < rows;) {
      body(first, std::min(first + piece, rows));
    }
  };
  std::vector<std::jthread> helpers;
  for (int64_t i = 1; i < std::min(cores, (rows + piece - 1) / piece); ++i) helpers.emplace_back(work);
  work();
}

}  // namespace fccl::test
