// fccl-perf on GPUs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/perf/measure.h"
#include "tests/perf/ranks.h"

namespace fccl::perf {

struct CudaOptions {
  int calls = 20;  // in a graph
  int sets = 2;    // of buffers, which calls alternate between
  bool compareNccl = false;
  bool compareUnfused = false;  // FCCL's plain all-reduce, then its epilogue as a kernel of its own
  fcclStrategy_t strategy = fcclStrategyAuto;
};

// One rank on its GPU.
class CudaPerf {
 public:
  virtual ~CudaPerf() = default;
  // Collective. A graph of calls per rank and variant, released at once on all ranks; each round is a replay, and its
  // time the slowest rank's per call, which single calls (p99) are taken from too. The input is not rewritten.
  virtual Row measure(const Case& c, const MeasureOptions& options) = 0;
  virtual fcclComm_t communicator() const = 0;  // that is measured; borrowed
  virtual std::string hardware() const = 0;     // "2 x NVIDIA H200, driver 13.0"
  virtual std::string nccl() const = 0;         // its version; empty: not compared with, or not there
};

// Collective. Throws std::runtime_error where there is no GPU, or this build has no CUDA.
std::unique_ptr<CudaPerf> makeCudaPerf(Ranks& ranks, const CudaOptions& options);

}  // namespace fccl::perf
