#include "tuner/registry.h"

#include <algorithm>
#include <array>

#include "tuner/strategies.h"

namespace fccl {

std::span<const StrategyRow> strategies() {
  static const std::array<StrategyRow, 7> rows = {kOneshotRow, kTwoshotRow,       kMinLatencyRow,  kUserBufferRow,
                                                  kNcclRow,    kNcclSymmetricRow, kLowPrecisionRow};
  return rows;
}

const StrategyRow* findStrategy(fcclStrategy_t id) {
  const auto rows = strategies();
  const auto it = std::find_if(rows.begin(), rows.end(), [&](const StrategyRow& row) { return row.id == id; });
  return it == rows.end() ? nullptr : &*it;
}

}  // namespace fccl
