#include "tests/perf/cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "tests/perf/ranks.h"
#include "tuner/patterns.h"

namespace fccl::perf {

size_t Case::bytes() const { return count() * bytesOf(dtype); }

PatternTraits traitsOf(fcclFusionPattern_t pattern) {
  switch (pattern) {
    case fcclPatternAllReduce: return {};
    case fcclPatternRmsNorm: return {.residual = false, .norm = true, .normOut = true, .fp8 = false, .nvfp4 = false};
    case fcclPatternResidualRmsNorm:
      return {.residual = true, .norm = true, .normOut = true, .fp8 = false, .nvfp4 = false};
    case fcclPatternResidualRmsNormQuantFp8:
      return {.residual = true, .norm = true, .normOut = false, .fp8 = true, .nvfp4 = false};
    case fcclPatternResidualRmsNormOutQuantFp8:
      return {.residual = true, .norm = true, .normOut = true, .fp8 = true, .nvfp4 = false};
    case fcclPatternResidualRmsNormQuantNvfp4:
      return {.residual = true, .norm = true, .normOut = false, .fp8 = false, .nvfp4 = true};
    case fcclPatternResidualRmsNormOutQuantNvfp4:
      return {.residual = true, .norm = true, .normOut = true, .fp8 = false, .nvfp4 = true};
  }
  return {};
}

void shardResidual(const Case& c, int ranks, int rank, fcclFusedArgs_t& args) {
  int64_t first = 0;
  int64_t count = 0;
  require(fcclResidualShard(c.tokens, ranks, rank, &first, &count), "fcclResidualShard", nullptr);
  const size_t before = static_cast<size_t>(first) * static_cast<size_t>(c.hidden) * bytesOf(c.dtype);
  args.residual = static_cast<const char*>(args.residual) + before;
  args.residualOut = static_cast<char*>(args.residualOut) + before;
  args.residualSharded = 1;
}

size_t bytesOf(fcclDataType_t dtype) {
  switch (dtype) {
    case fcclInt8:
    case fcclUint8: return 1;
    case fcclFloat16:
    case fcclBfloat16: return 2;
    case fcclInt32:
    case fcclUint32:
    case fcclFloat32: return 4;
    case fcclInt64:
    case fcclUint64:
    case fcclFloat64: return 8;
  }
  return 0;
}

bool isSixteenBit(fcclDataType_t dtype) { return dtype == fcclFloat16 || dtype == fcclBfloat16; }

size_t bytesOfText(std::string_view text) {
  size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view suffix(end, static_cast<size_t>(text.data() + text.size() - end));
  int shift = -1;
  if (suffix.empty()) shift = 0;
  if (suffix == "K" || suffix == "k") shift = 10;
  if (suffix == "M" || suffix == "m") shift = 20;
  if (suffix == "G" || suffix == "g") shift = 30;
  if (error != std::errc() || shift < 0 || number == 0 || number > (SIZE_MAX >> 1) >> shift) {
    throw std::invalid_argument(
        fmt::format("Size '{}' is not a positive number of bytes with an optional K, M or G.", text));
  }
  return number << shift;
}

std::string textOfBytes(size_t bytes) {
  if (bytes != 0 && bytes % (1U << 30) == 0) return fmt::format("{} GiB", bytes >> 30);
  if (bytes != 0 && bytes % (1U << 20) == 0) return fmt::format("{} MiB", bytes >> 20);
  if (bytes != 0 && bytes % (1U << 10) == 0) return fmt::format("{} KiB", bytes >> 10);
  return fmt::format("{} B", bytes);
}

const std::vector<fcclFusionPattern_t>& allPatterns() {
  static const std::vector<fcclFusionPattern_t> patterns = [] {
    std::vector<fcclFusionPattern_t> all;
    for (size_t i = 0; i < kPatterns.size(); i++) all.push_back(static_cast<fcclFusionPattern_t>(i));
    return all;
  }();
  return patterns;
}

std::string describe(const Case& c) {
  std::string text = c.fused() ? fmt::format("{} {} {} x {}", nameOf(c.pattern), nameOf(c.dtype), c.tokens, c.hidden)
                               : fmt::format("plain {} {} {}", nameOf(c.dtype), nameOf(c.op), textOfBytes(c.bytes()));
  if (c.windows) text += ", windows";
  if (c.sharded) text += ", sharded residual";
  if (c.strategy != fcclStrategyAuto) text += fmt::format(", {}", nameOf(c.strategy));
  return text;
}

std::vector<int64_t> tokensBySize(size_t minBytes, size_t maxBytes, size_t factor, size_t rowBytes) {
  std::vector<int64_t> tokens;
  for (size_t bytes = minBytes; bytes <= maxBytes; bytes *= factor) {
    const auto rows = static_cast<int64_t>(std::max<size_t>(1, bytes / rowBytes));
    if (tokens.empty() || tokens.back() != rows) tokens.push_back(rows);
    if (bytes > maxBytes / factor) break;
  }
  return tokens;
}

}  // namespace fccl::perf
