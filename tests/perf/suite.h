// The speed goals of the HOST device as data, and how a run stands to them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tests/perf/measure.h"

namespace fccl::perf {

struct Goal {
  Case c;
  std::string peer;  // variant that FCCL's time is divided by
  double limit;      // largest ratio that meets the goal
};

// For 2, 4 or 8 ranks; throws std::invalid_argument for others.
std::vector<Goal> hostGoals(int ranks);

// The cases of the goals, each once, in order.
std::vector<Case> casesOf(const std::vector<Goal>& goals);

// One line per goal: times, ratio, limit, MET or MISSED. Never an error: a time is no test. `rows` are the results of
// casesOf(goals).
std::string goalsText(const std::vector<Goal>& goals, const std::vector<Row>& rows);
nlohmann::json goalsJson(const std::vector<Goal>& goals, const std::vector<Row>& rows);

}  // namespace fccl::perf
