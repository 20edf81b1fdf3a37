// Progress on standard error: a bar that redraws itself on a terminal, a few percentages on one line elsewhere.
#ifndef EXAMPLES_COMMON_PROGRESS_H_
#define EXAMPLES_COMMON_PROGRESS_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "common/mpi_program.h"

class Progress {
 public:
  // Only one rank shows it; the others pass visible = false.
  Progress(int64_t total, bool visible) : total_(total), visible_(visible && total > 0) {
    const char* terminal = std::getenv(kTerminalVariable);
    terminal_ = terminal != nullptr && terminal[0] == '1';
  }

  void advance(const std::string& what) {
    const int64_t percent = ++done_ * 100 / (total_ > 0 ? total_ : 1);
    if (!visible_ || percent == shown_) return;
    if (terminal_) {
      constexpr int64_t kWidth = 40;
      const auto filled = static_cast<size_t>(percent * kWidth / 100);
      std::fprintf(stderr, "\r[%s%s] %3d%% %-28.28s", std::string(filled, '#').c_str(),
                   std::string(kWidth - filled, '.').c_str(), static_cast<int>(percent), what.c_str());
    } else if (percent / 10 != shown_ / 10) {
      std::fprintf(stderr, " %d%%", static_cast<int>(percent));
    }
    if (percent == 100) std::fprintf(stderr, "\n");
    std::fflush(stderr);
    shown_ = percent;
  }

 private:
  int64_t total_;
  int64_t done_ = 0;
  int64_t shown_ = 0;
  bool visible_;
  bool terminal_ = false;
};

#endif  // EXAMPLES_COMMON_PROGRESS_H_
