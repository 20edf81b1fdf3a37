// In place of tests/perf/cuda where there is no CUDA toolkit.
#include <stdexcept>

#include "tests/perf/cuda/cuda_perf.h"

namespace fccl::perf {

std::unique_ptr<CudaPerf> makeCudaPerf(Ranks&, const CudaOptions&) {
  throw std::runtime_error("--device cuda: this build has no CUDA (no nvcc was found when it was configured)");
}

}  // namespace fccl::perf
