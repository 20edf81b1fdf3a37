#include "tuner/chunking.h"
#include "tuner/needs.h"
#include "tuner/strategies.h"

namespace fccl {
namespace {

Reason eligible(const Query& query, const Facts& facts) {
  if (Reason reason = needMappedPeers("UB", facts); !reason.empty()) return reason;
  if (!query.inputInWindow) {
    return "UB needs the input in a window of this communicator (fcclMemAlloc, fcclCommWindowRegister), and with a "
           "norm no output in its place.";
  }
  if (!query.norm && !query.outputInWindow) {
    return "UB needs the output of a call without norm in a window of this communicator (fcclMemAlloc, "
           "fcclCommWindowRegister).";
  }
  return {};
}

// Nothing is staged.
size_t workspace(const Query&, const Facts&) { return 0; }

Plan plan(const Query& query, const Facts& facts) {
  Plan plan;
  plan.strategy = fcclStrategyUb;
  plan.protocol = query.norm ? host::Protocol::kWindowOneshot : host::Protocol::kWindowTwoshot;
  plan.windowsAligned = query.windowsAligned;
  if (facts.device == fcclDeviceCuda) return plan;
  plan.wire = host::Wire::kFlags;
  plan.shape.rowsPerChunk = 1;
  plan.shape.colsPerChunk = query.cols;
  plan.shape.streamOutput = streamsOutput(query, facts);
  plan.rowScratchBytes = rowScratchBytes(query);
  plan.kernel = host::findKernel(facts.simd, plan.protocol, plan.wire, query.dtype, query.op, query.norm, facts.ranks);
  return plan;
}

}  // namespace

const StrategyRow kUserBufferRow = {
    fcclStrategyUb,
    "UB",
    "peers read the registered window itself, nothing is staged; without norm each rank reduces its share into every "
    "rank's output",
    eligible,
    workspace,
    plan};

}  // namespace fccl
