// The command line of fccl-perf.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/perf/cases.h"
#include "tests/perf/cuda/cuda_perf.h"
#include "tests/perf/measure.h"

namespace fccl::perf {

enum class Launch { kAuto, kThreads, kMpi };

struct Options {
  Launch launch = Launch::kAuto;
  std::optional<int> ranks;  // default: mpirun's, else 2
  bool pin = false;
  std::vector<Case> cases;  // of the suite: empty, they depend on the number of ranks
  bool outOfPlace = true;
  bool inPlace = true;
  bool compareMpi = false;
  bool onCuda = false;
  CudaOptions cuda;
  bool compareUnfused = false;
  bool hostGoals = false;
  std::string jsonFile;
  MeasureOptions measure;
};

// Thrown where the process should end at once: help was asked for (status 0), or an argument is wrong (status 2).
struct EarlyExit : std::runtime_error {
  EarlyExit(int exitStatus, const std::string& text) : std::runtime_error(text), status(exitStatus) {}
  int status;
};

Options parseOptions(int argc, const char* const* argv);

}  // namespace fccl::perf
