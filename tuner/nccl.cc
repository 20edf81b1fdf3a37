// The strategies that leave the exchange to NCCL: see lib/cuda_nccl.h for what is enqueued.
#include <algorithm>

#include "tuner/chunking.h"
#include "tuner/strategies.h"

namespace fccl {
namespace {

// Elements, linear in the number of ranks: TensorRT-LLM's model for NCCL's symmetric kernels.
constexpr double kStagingPerRank = -4986.43478503;
constexpr double kStagingBase = 156716.52177552;

Reason eligible(const Query&, const Facts& facts) {
  if (facts.device == fcclDeviceHost) {
    return "NCCL moves data between GPUs, and this communicator is on HOST; make a CUDA communicator (deviceType, "
           "FCCL_DEVICE).";
  }
  return facts.noNccl;
}

Reason eligibleSymmetric(const Query& query, const Facts& facts) {
  if (Reason reason = eligible(query, facts); !reason.empty()) return reason;
  return facts.noNcclWindow;
}

// Outside of the symmetric memory: what has nowhere else to go between NCCL and the epilogue.
size_t workspace(const Query&, const Facts&) { return 0; }

Plan plan(const Query&, const Facts&) {
  Plan plan;
  plan.strategy = fcclStrategyNccl;
  return plan;
}

Plan planSymmetric(const Query& query, const Facts& facts) {
  Plan plan;
  plan.strategy = fcclStrategyNcclSymmetric;
  plan.ncclStaged = payloadBytes(query) >= ncclStagingBytes(facts.ranks, host::dtypeBytes(query.dtype));
  return plan;
}

}  // namespace

size_t ncclStagingBytes(int ranks, size_t elementBytes) {
  const double elements = std::max(0.0, kStagingPerRank * ranks + kStagingBase);
  return static_cast<size_t>(elements * static_cast<double>(elementBytes));
}

const StrategyRow kNcclRow = {fcclStrategyNccl, "NCCL",    "ncclAllReduce, then one kernel for all that follows it",
                              eligible,         workspace, plan};

const StrategyRow kNcclSymmetricRow = {fcclStrategyNcclSymmetric,
                                       "NCCL_SYMMETRIC",
                                       "as NCCL, by way of a symmetric window where the call is large enough for that",
                                       eligibleSymmetric,
                                       workspace,
                                       planSymmetric};

}  // namespace fccl
