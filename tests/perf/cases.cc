#include "tests/perf/cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>

namespace fccl::perf {
namespace {

template <class Value>
struct Named {
  Value value;
  const char* name;   // printed
  const char* alias;  // also understood
};

constexpr Named<fcclFusionPattern_t> kPatterns[] = {
    {fcclPatternAllReduce, "all_reduce", "plain"},
    {fcclPatternRmsNorm, "rms_norm", nullptr},
    {fcclPatternResidualRmsNorm, "residual_rms_norm", nullptr},
    {fcclPatternResidualRmsNormQuantFp8, "residual_rms_norm_quant_fp8", nullptr},
    {fcclPatternResidualRmsNormOutQuantFp8, "residual_rms_norm_out_quant_fp8", nullptr},
    {fcclPatternResidualRmsNormQuantNvfp4, "residual_rms_norm_quant_nvfp4", nullptr},
    {fcclPatternResidualRmsNormOutQuantNvfp4, "residual_rms_norm_out_quant_nvfp4", nullptr},
};
constexpr Named<fcclDataType_t> kTypes[] = {
    {fcclInt8, "int8", "char"},         {fcclUint8, "uint8", nullptr},  {fcclInt32, "int32", "int"},
    {fcclUint32, "uint32", nullptr},    {fcclInt64, "int64", nullptr},  {fcclUint64, "uint64", nullptr},
    {fcclFloat16, "half", "fp16"},      {fcclFloat32, "float", "fp32"}, {fcclFloat64, "double", "fp64"},
    {fcclBfloat16, "bfloat16", "bf16"},
};
constexpr Named<fcclRedOp_t> kOps[] = {
    {fcclSum, "sum", nullptr}, {fcclProd, "prod", nullptr}, {fcclMax, "max", nullptr},
    {fcclMin, "min", nullptr}, {fcclAvg, "avg", nullptr},
};
constexpr Named<fcclStrategy_t> kStrategies[] = {
    {fcclStrategyAuto, "auto", nullptr},       {fcclStrategyOneshot, "oneshot", nullptr},
    {fcclStrategyTwoshot, "twoshot", nullptr}, {fcclStrategyMinLatency, "min_latency", nullptr},
    {fcclStrategyUb, "ub", nullptr},           {fcclStrategyLowPrecision, "lowprecision", nullptr},
    {fcclStrategyNccl, "nccl", nullptr},       {fcclStrategyNcclSymmetric, "nccl_symmetric", nullptr},
};

template <class Value, size_t kCount>
const char* nameIn(const Named<Value> (&table)[kCount], Value value) {
  for (const Named<Value>& row : table) {
    if (row.value == value) return row.name;
  }
  return "?";
}

template <class Value, size_t kCount>
Value valueIn(const Named<Value> (&table)[kCount], const char* what, std::string_view name) {
  std::string allowed;
  for (const Named<Value>& row : table) {
    if (name == row.name || (row.alias != nullptr && name == row.alias)) return row.value;
    allowed += fmt::format("{}{}", allowed.empty() ? "" : ", ", row.name);
  }
  throw std::invalid_argument(fmt::format("{} '{}' is not known; allowed are {}.", what, name, allowed));
}

}  // namespace

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

const char* nameOf(fcclFusionPattern_t pattern) { return nameIn(kPatterns, pattern); }
const char* nameOf(fcclDataType_t dtype) { return nameIn(kTypes, dtype); }
const char* nameOf(fcclRedOp_t op) { return nameIn(kOps, op); }
const char* nameOf(fcclStrategy_t strategy) { return nameIn(kStrategies, strategy); }

fcclFusionPattern_t patternOf(std::string_view name) { return valueIn(kPatterns, "Pattern", name); }
fcclDataType_t dtypeOf(std::string_view name) { return valueIn(kTypes, "Data type", name); }
fcclRedOp_t opOf(std::string_view name) { return valueIn(kOps, "Operator", name); }
fcclStrategy_t strategyOf(std::string_view name) { return valueIn(kStrategies, "Strategy", name); }

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
    for (const auto& row : kPatterns) all.push_back(row.value);
    return all;
  }();
  return patterns;
}

std::string describe(const Case& c) {
  std::string text = c.fused() ? fmt::format("{} {} {} x {}", nameOf(c.pattern), nameOf(c.dtype), c.tokens, c.hidden)
                               : fmt::format("plain {} {} {}", nameOf(c.dtype), nameOf(c.op), textOfBytes(c.bytes()));
  if (c.windows) text += ", windows";
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
