// What the registry says of CUDA. Kernels and launch shapes are chosen beside the kernels (kernels/cuda/plan.cc).
#include <fmt/format.h>

#include "tuner/needs.h"
#include "tuner/strategies.h"

namespace fccl {
namespace {

constexpr int kLeastGeneration = 80;  // that the kernels are compiled for

}  // namespace

Reason notOnDevice(const Query& query, const Facts& facts) {
  if (facts.device != fcclDeviceCuda) return {};
  if (Reason reason = needGeneration("FCCL", facts, kLeastGeneration); !reason.empty()) return reason;
  const bool type = query.dtype == fcclFloat32 || query.dtype == fcclFloat16 || query.dtype == fcclBfloat16;
  if (type && query.op == fcclSum) return {};
  return fmt::format(
      "{} of this op is not on CUDA yet: a CUDA communicator reduces fcclFloat32, fcclFloat16 and fcclBfloat16 with "
      "fcclSum, and NCCL would do the rest, but {} Or use a HOST communicator.",
      host::dtypeName(query.dtype), facts.noNccl.empty() ? "another strategy is asked for." : facts.noNccl);
}

size_t cudaWorkspace(cuda::Protocol protocol, const Query& query, const Facts& facts) {
  constexpr size_t kEpochs = 3;
  return kEpochs * cuda::epochBytes(protocol, facts.ranks, query.rows, query.cols, host::dtypeBytes(query.dtype));
}

Plan planOnCuda(fcclStrategy_t strategy, host::Protocol protocol) {
  Plan plan;
  plan.strategy = strategy;
  plan.protocol = protocol;
  return plan;
}

}  // namespace fccl
