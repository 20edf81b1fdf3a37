// Tuning results in a JSON file that several machines, versions and group sizes share. docs/selection.md describes it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tuner/tuning_table.h"

namespace fccl {

// Where results are valid: equal in all of it.
struct TuningMachine {
  std::string topology;  // topologySignature()
  std::string version;   // of the library, "0.1.0"
  fcclDeviceType_t device = fcclDeviceHost;
  int ranks = 1;
  int ranksPerDevice = 1;
  size_t workspaceBytes = 0;  // of a staging slot (HOST) or area (CUDA)
  bool operator==(const TuningMachine&) const = default;
};
std::string libraryVersion();
// "HOST, 4 ranks", "CUDA, 8 ranks, up to 2 on a GPU".
std::string describe(const TuningMachine& machine);

class TuningFile {
 public:
  // A failure says in one sentence what is wrong with the text, which is then no tuning file or a damaged one.
  static Result<TuningFile> parse(const std::string& text, const std::string& nameInErrors);
  // A file that is not there, or empty, has no results.
  static Result<TuningFile> read(const std::string& path);

  std::string json() const;
  // NULL where there is nothing for the machine.
  const TuningTable* find(const TuningMachine& machine) const;
  void merge(const TuningMachine& machine, const TuningTable& newer);
  const std::vector<std::pair<TuningMachine, TuningTable>>& machines() const { return machines_; }

 private:
  std::vector<std::pair<TuningMachine, TuningTable>> machines_;
};

// Adds results to the file at `path`, which readers find as it was before or as it is afterwards, and in which the
// results of other writers, of other processes too, stay. A file that is no tuning file is left as it is.
Status saveTuning(const std::string& path, const TuningMachine& machine, const TuningTable& newer);

}  // namespace fccl
