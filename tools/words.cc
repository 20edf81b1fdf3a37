#include "tools/words.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "kernels/host/host_kernels.h"
#include "lib/validate.h"
#include "tuner/patterns.h"

namespace fccl::tools {
namespace {

template <class Value>
struct Named {
  Value value;
  std::string name;   // printed
  std::string alias;  // also understood
};

// The values from 0 to `last` that name(value) has a word for.
template <class Value, class Name>
std::vector<Named<Value>> listOf(int last, Name name) {
  std::vector<Named<Value>> list;
  for (int number = 0; number <= last; number++) {
    if (const char* known = name(number)) list.push_back({static_cast<Value>(number), lowerCase(known), ""});
  }
  return list;
}

const std::vector<Named<fcclFusionPattern_t>>& patterns() {
  static const auto all = [] {
    auto list = listOf<fcclFusionPattern_t>(static_cast<int>(kPatterns.size()) - 1,
                                            [](int number) { return kPatterns[static_cast<size_t>(number)].name; });
    for (auto& row : list) {
      row.alias = row.name;
      if (const size_t quant = row.alias.find("quant_"); quant != std::string::npos) row.alias.erase(quant, 6);
    }
    list.front().alias = "plain";
    return list;
  }();
  return all;
}

const std::vector<Named<fcclDataType_t>>& dtypes() {
  static const auto all = [] {
    auto list = listOf<fcclDataType_t>(fcclBfloat16,
                                       [](int number) { return host::dtypeName(static_cast<fcclDataType_t>(number)); });
    for (auto& row : list) {
      row.alias = row.name;  // "bf16"; nccl-tests prints some as C calls them
      if (row.value == fcclFloat16) row.name = "half";
      if (row.value == fcclFloat32) row.name = "float";
      if (row.value == fcclFloat64) row.name = "double";
      if (row.value == fcclBfloat16) row.name = "bfloat16";
      if (row.value == fcclInt8) row.alias = "char";
      if (row.value == fcclInt32) row.alias = "int";
    }
    return list;
  }();
  return all;
}

const std::vector<Named<fcclRedOp_t>>& ops() {
  static const auto all = listOf<fcclRedOp_t>(fcclAvg, opName);
  return all;
}

const std::vector<Named<fcclStrategy_t>>& allStrategies() {
  static const auto all = listOf<fcclStrategy_t>(fcclStrategyNcclSymmetric, strategyName);
  return all;
}

template <class Value>
std::string nameIn(const std::vector<Named<Value>>& list, Value value) {
  const auto row = std::ranges::find(list, value, &Named<Value>::value);
  return row == list.end() ? "?" : row->name;
}

template <class Value>
Value valueIn(const std::vector<Named<Value>>& list, const char* option, std::string_view word) {
  const std::string plain = lowerCase(word);
  std::string known;
  for (const Named<Value>& row : list) {
    if (!plain.empty() && (plain == row.name || plain == row.alias)) return row.value;
    known += (known.empty() ? "" : ", ") + row.name;
  }
  throw std::invalid_argument(fmt::format("{} is {}; it can be {}.", option, word, known));
}

}  // namespace

std::string lowerCase(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

std::string nameOf(fcclFusionPattern_t pattern) { return nameIn(patterns(), pattern); }
std::string nameOf(fcclDataType_t dtype) { return nameIn(dtypes(), dtype); }
std::string nameOf(fcclRedOp_t op) { return nameIn(ops(), op); }
std::string nameOf(fcclStrategy_t strategy) { return nameIn(allStrategies(), strategy); }

fcclFusionPattern_t patternOf(std::string_view word) { return valueIn(patterns(), "--pattern", word); }
fcclDataType_t dtypeOf(std::string_view word) { return valueIn(dtypes(), "--dtype", word); }
fcclRedOp_t opOf(std::string_view word) { return valueIn(ops(), "--op", word); }
fcclStrategy_t strategyOf(std::string_view word) { return valueIn(allStrategies(), "--strategy", word); }

}  // namespace fccl::tools
