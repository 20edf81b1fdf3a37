// What AUTO's choices cost against the best strategy: over a grid of calls, without and with tuning.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tuner/tuning_table.h"

namespace fccl::tools {

// One call of the grid.
struct RegretRow {
  fcclQuery_t call = FCCL_QUERY_INITIALIZER;
  std::vector<TuningTime> times;  // of this run, apart from the tuning; empty where there is one way only
  fcclStrategy_t untuned = fcclStrategyAuto;
  fcclStrategy_t tuned = fcclStrategyAuto;
  fcclStrategy_t tunedBefore = fcclStrategyAuto;  // by another tuning of the same machine
};

// The time of a choice over the least; 1 where there is one way only.
double regretOf(const RegretRow& row, fcclStrategy_t choice);

// Of calls that two tunings decided: the same, and the same or less than 3 % apart in time, in percent.
struct Agreement {
  double same = 100;
  double close = 100;
};
Agreement agreementOf(const std::vector<RegretRow>& rows);

// A markdown table, a line per pattern and one for all, and a sentence about the agreement.
std::string regretText(const std::vector<RegretRow>& rows);
nlohmann::json regretJson(const std::vector<RegretRow>& rows);

}  // namespace fccl::tools
