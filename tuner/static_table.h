// Tables of which strategy is fastest, compiled in from tuner/tables/*.csv by cmake/GenerateTables.cmake.
#pragma once

#include <cstdint>
#include <span>

#include "tuner/registry.h"

namespace fccl {

// The columns of a table beside ranks, hidden size and tokens. Patterns with and without norm out share one.
enum class TableOp : uint8_t { kNone = 0, kResidualRmsNorm = 1, kQuantFp8 = 2, kQuantNvfp4 = 3 };

// Cells are sorted by all that comes before the strategy, in this order: ranks, op, hidden, tokens.
struct TableCell {
  int16_t ranks;
  uint8_t op;
  uint8_t strategy;  // the number of fcclStrategy_t, also of strategies that this version does not have
  int32_t hidden;
  int32_t tokens;
};

struct StaticTable {
  const char* name;
  const char* kernels;  // whose were timed: "trtllm" or "fccl"
  const char* device;
  const char* source;
  int generation;  // 90
  std::span<const TableCell> cells;
};

std::span<const StaticTable> staticTables();

// The table of these kernels for a generation; NULL where there is none. trtllm: below 100 that of 90, from 100 on that
// of 100, as the original takes them.
const StaticTable* findTable(const char* kernels, int generation);

struct TableKey {
  int64_t ranks = 0;
  TableOp op = TableOp::kNone;
  int64_t hidden = 0;
  int64_t tokens = 0;
};
// Of a query. A call without norm has no rows any more: it counts as tokens of 8192 columns.
TableKey tableKey(const Query& query, int ranks);

// The cell of the greatest listed ranks, hidden size and tokens that are not above the key's: nothing is interpolated.
// NULL where one of them is below the least that is listed, or twice the greatest or more. In tables of trtllm hidden
// sizes 65 to 127 count as 128, because there the logarithm is cut towards zero. Other tables say nothing of more ranks
// than they list.
const TableCell* lookUp(const StaticTable& table, const TableKey& key);

// "NCCL".
const char* tableStrategyName(int strategy);

}  // namespace fccl
