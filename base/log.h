// The one logger: lines to stderr at FCCL_DEBUG=WARN (default: nothing but errors that no call can return), INFO,
// TRACE.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace fccl {

enum class LogLevel { kNone, kWarn, kInfo, kTrace };

// Read by every FCCL_LOG; set once when the environment is read.
LogLevel logLevel();
void setLogLevel(LogLevel level);
// One write(2) per line, so that lines of several ranks do not mix: "host:pid:tid [WARN] text".
void logLine(LogLevel level, std::string_view text);

}  // namespace fccl

#define FCCL_LOG(level, ...)                                                               \
  do {                                                                                     \
    if (::fccl::logLevel() >= (level)) ::fccl::logLine((level), fmt::format(__VA_ARGS__)); \
  } while (0)
#define FCCL_WARN(...) FCCL_LOG(::fccl::LogLevel::kWarn, __VA_ARGS__)
#define FCCL_INFO(...) FCCL_LOG(::fccl::LogLevel::kInfo, __VA_ARGS__)
#define FCCL_TRACE(...) FCCL_LOG(::fccl::LogLevel::kTrace, __VA_ARGS__)
