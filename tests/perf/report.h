// Results as nccl-tests' columns and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tests/perf/machine.h"
#include "tests/perf/measure.h"

namespace fccl::perf {

// What is the same for all rows of a run.
struct RunFacts {
  std::string command;  // without paths
  std::string date;     // UTC, ISO 8601
  std::string git;      // git describe of the source; "unknown" outside a repository
  std::string fcclVersion;
  std::string mpiVersion;  // empty: ranks are threads
  std::string compiler;
  std::string epilogueIsa;
  std::string launch;  // "threads" or "processes"
  std::string gpus;    // empty: HOST
  std::string nccl;    // its version, where it is a peer
  int graphCalls = 0;  // CUDA
  int sets = 0;
  int ranks = 0;
  bool pinned = false;
  MeasureOptions measure;
  Machine machine;
};

// Comment lines (#) before the table: facts, then the column heads.
std::string headText(const RunFacts& facts);
// One line in nccl-tests' columns, out of place and in place, then p99 of single calls, the machine's state and what
// AUTO took; under it a comment line for each peer in the same columns, with FCCL's time divided by the peer's.
std::string rowText(const Row& row, int ranks);
// Comment lines after the table.
std::string footText(const std::vector<Row>& rows, int ranks);

// FCCL's median over the peer's, NaN where one was not measured.
double ratioTo(const Row& row, const std::string& peer, bool inPlace);
const Series* findSeries(const Row& row, const std::string& variant, bool inPlace);
// Wrong elements of all series of all rows that were checked.
long long totalWrong(const std::vector<Row>& rows);

nlohmann::json jsonOf(const RunFacts& facts);
nlohmann::json jsonOf(const Row& row, int ranks);

// The arguments as one line: the program without its folder, and without --json and its file.
std::string commandText(int argc, const char* const* argv);

}  // namespace fccl::perf
