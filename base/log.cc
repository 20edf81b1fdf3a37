#include "base/log.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace fccl {

namespace {

// A level of its own publishes nothing else, so relaxed order is enough on both sides.
std::atomic<LogLevel> currentLevel{LogLevel::kNone};

std::string_view levelName(LogLevel level) {
  switch (level) {
    case LogLevel::kNone: return "ERROR";
    case LogLevel::kWarn: return "WARN";
    case LogLevel::kInfo: return "INFO";
    case LogLevel::kTrace: return "TRACE";
  }
  return "?";
}

}  // namespace

LogLevel logLevel() { return currentLevel.load(std::memory_order_relaxed); }

void setLogLevel(LogLevel level) { currentLevel.store(level, std::memory_order_relaxed); }

void logLine(LogLevel level, std::string_view text) {
  // Logging between a failing call and its message must not change that message.
  const int savedErrno = errno;
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  fmt::memory_buffer line;
  fmt::format_to(std::back_inserter(line), "{}:{}:{} [{}] ", host, getpid(), syscall(SYS_gettid), levelName(level));
  for (const char c : text) line.push_back(c == '\n' ? ' ' : c);
  line.push_back('\n');
  const char* rest = line.data();
  size_t left = line.size();
  while (left > 0) {
    const ssize_t written = write(STDERR_FILENO, rest, left);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    rest += written;
    left -= static_cast<size_t>(written);
  }
  errno = savedErrno;
}

}  // namespace fccl
