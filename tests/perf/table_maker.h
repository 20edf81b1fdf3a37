// A static table of the tuner (tuner/tables/*.csv) from fccl-perf's JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace fccl::perf {

struct TableOptions {
  int generation = 0;  // compute capability, 90 for 9.0
  double tie = 0.03;   // as fast as the fastest, within this share
  std::string source;  // where the figures are from
};

struct MadeTable {
  std::string csv;
  int cells = 0;
  std::vector<std::string> notes;  // what was left out, and why
};

// Runs on CUDA with a strategy by its name, and NCCL as it was timed beside them. Each cell gets the strategy with the
// least median time; of those within the tie, the one of the next lower token count, so that noise makes no borders.
// Throws std::invalid_argument, naming the file, where a report is none, has wrong results or another GPU.
MadeTable makeTable(const std::vector<std::pair<std::string, nlohmann::json>>& reports, const TableOptions& options);

}  // namespace fccl::perf
