#include "tuner/static_table.h"

#include <algorithm>
#include <string_view>
#include <tuple>

namespace fccl {
namespace {

constexpr const char* kNames[] = {"NCCL",    "MIN_LATENCY",  "UB",    "AUTO",          "ONESHOT",
                                  "TWOSHOT", "LOWPRECISION", "MNNVL", "NCCL_SYMMETRIC"};

// The greatest of one column that is not above `wanted`, or 0.
template <class Column>
int64_t floorIn(const StaticTable& table, Column column, int64_t wanted) {
  int64_t best = 0;
  int64_t greatest = 0;
  for (const TableCell& cell : table.cells) {
    const int64_t value = cell.*column;
    greatest = std::max(greatest, value);
    if (value <= wanted) best = std::max(best, value);
  }
  return wanted < 2 * greatest ? best : 0;
}

}  // namespace

const StaticTable* findTable(const char* kernels, int generation) {
  const bool original = std::string_view(kernels) == "trtllm";
  const int wanted = original ? (generation < 100 ? 90 : 100) : generation;
  for (const StaticTable& table : staticTables()) {
    if (std::string_view(table.kernels) == kernels && table.generation == wanted) return &table;
  }
  return nullptr;
}

TableKey tableKey(const Query& query, int ranks) {
  constexpr int64_t kPlainHidden = 8192;
  TableKey key{.ranks = ranks, .hidden = query.cols, .tokens = query.rows};
  if (query.norm) {
    key.op = query.quant == QuantKind::kFp8     ? TableOp::kQuantFp8
             : query.quant == QuantKind::kNvfp4 ? TableOp::kQuantNvfp4
                                                : TableOp::kResidualRmsNorm;
  } else if (query.cols > kPlainHidden) {
    key.hidden = kPlainHidden;
    key.tokens = query.cols / kPlainHidden;
  }
  return key;
}

const TableCell* lookUp(const StaticTable& table, const TableKey& key) {
  constexpr int64_t kLeastHidden = 128;
  const bool original = std::string_view(table.kernels) == "trtllm";
  int64_t hidden = key.hidden;
  if (original && hidden > kLeastHidden / 2) hidden = std::max(hidden, kLeastHidden);
  // What two ranks want says nothing of three.
  const auto listed = [&](const TableCell& cell) { return cell.ranks >= key.ranks; };
  if (!original && std::ranges::none_of(table.cells, listed)) return nullptr;
  const auto ranks = static_cast<int16_t>(floorIn(table, &TableCell::ranks, key.ranks));
  const auto width = static_cast<int32_t>(floorIn(table, &TableCell::hidden, hidden));
  const auto tokens = static_cast<int32_t>(floorIn(table, &TableCell::tokens, key.tokens));
  if (ranks == 0 || width == 0 || tokens == 0) return nullptr;
  const auto order = [](const TableCell& cell) { return std::tuple(cell.ranks, cell.op, cell.hidden, cell.tokens); };
  const auto wanted = std::tuple(ranks, static_cast<uint8_t>(key.op), width, tokens);
  const auto cell = std::ranges::lower_bound(table.cells, wanted, {}, order);
  return cell != table.cells.end() && order(*cell) == wanted ? &*cell : nullptr;
}

const char* tableStrategyName(int strategy) {
  return strategy >= 0 && strategy < static_cast<int>(std::size(kNames)) ? kNames[strategy] : "?";
}

}  // namespace fccl
