// The registry of strategies. AUTO, explain, documentation and tests iterate over it; adding a strategy adds a row.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fccl.h"
#include "kernels/cuda/launch_plan.h"
#include "kernels/host/host_kernels.h"
#include "transport/topology.h"

namespace fccl {

class TuningTable;

// What is known of a communicator when a plan is made; agreed over all ranks at initialisation, so that all ranks
// decide alike.
struct Facts {
  fcclDeviceType_t device = fcclDeviceHost;
  int ranksPerDevice = 1;  // CUDA: the most that one GPU has
  int ranks = 1;
  int cores = 1;  // that the ranks of this machine may use
  size_t slotBytes = 0;
  size_t lamportSlotBytes = 0;
  double flagNanoseconds = 0;  // one-way
  size_t cacheBytes = 0;       // last-level cache per rank
  // CUDA: why the communicator has no NCCL, or its NCCL no symmetric window, each a sentence; empty: it has.
  std::string noNccl = "this communicator has no NCCL beside it; ask for it with nccl (FCCL_NCCL=1).";
  std::string noNcclWindow = "there is no symmetric window of NCCL.";
  host::Simd simd = host::Simd::kGeneric;
  GroupFacts group;                          // CUDA: where the ranks' GPUs are and what lies between them
  std::shared_ptr<const TuningTable> tuned;  // what was measured here; NULL: nothing
};

// What is asked: one shape. Equal on all ranks.
struct Query {
  fcclDataType_t dtype = fcclFloat32;
  fcclRedOp_t op = fcclSum;
  fcclFusionPattern_t pattern = fcclPatternAllReduce;
  bool norm = false;  // of the pattern, as what follows
  QuantKind quant = QuantKind::kNone;
  bool packsAligned = false;    // all rows begin at multiples of 16 bytes (may differ between ranks)
  bool outputsAligned = false;  // all outputs and row lengths multiples of 64 bytes (may differ between ranks)
  bool inputInWindow = false;
  bool outputInWindow = false;
  bool windowsAligned = false;   // every rank's copy lies at a multiple of 16 bytes from this rank's (may differ too)
  bool inputPushed = false;      // CUDA: it stands in the slots of ONESHOT
  bool residualSharded = false;  // each rank has the residual of its own rows only
  int64_t rows = 0;
  int64_t cols = 0;
};

// What outputs and row lengths are multiples of where they are stored past the caches.
constexpr size_t kStreamAlignment = 64;

// Whether the rows of a query's data, and of what it quantizes to, are of such lengths.
inline bool rowLengthsAligned(const Query& query) {
  const auto cols = static_cast<size_t>(query.cols);
  const size_t quantBytes = query.quant == QuantKind::kNvfp4 ? cols / 2 : query.quant == QuantKind::kFp8 ? cols : 0;
  return (cols * host::dtypeBytes(query.dtype) | quantBytes) % kStreamAlignment == 0;
}

// How a call is carried out. Kept per shape by the communicator. On CUDA the strategy and the protocol are planned
// here, and the engine adds the launch.
struct Plan {
  fcclStrategy_t strategy = fcclStrategyAuto;
  host::Protocol protocol = host::Protocol::kOneshot;
  bool windowsAligned = false;  // as in the query
  bool ncclStaged = false;      // NCCL_SYMMETRIC: by way of the window
  cuda::Launch launch;          // of NCCL's strategies: the epilogue's
  host::Wire wire = host::Wire::kFlags;
  host::Kernel kernel = nullptr;
  host::Shape shape;
  size_t rowScratchBytes = 0;
};

// Empty: eligible. Else the reason, a sentence.
using Reason = std::string;

struct StrategyRow {
  fcclStrategy_t id;
  const char* name;       // "ONESHOT"
  const char* mechanism;  // one line for the documentation table
  // Of calls that the communicator's device can do at all.
  Reason (*eligible)(const Query& query, const Facts& facts);
  // Bytes of symmetric memory per rank that the strategy uses for this query.
  size_t (*workspace)(const Query& query, const Facts& facts);
  Plan (*plan)(const Query& query, const Facts& facts);
  // Of a strategy that is taken by name only: why so, and whether it would be worth that here. NULL: AUTO may take it.
  Reason (*byNameOnly)(const Query& query, const Facts& facts) = nullptr;
};

// Why no kernel of FCCL's can do this on the communicator's device, or empty. Calls that NCCL can do have no norm.
Reason notOnDevice(const Query& query, const Facts& facts);

std::span<const StrategyRow> strategies();
// NULL where there is no such row.
const StrategyRow* findStrategy(fcclStrategy_t id);

// A strategy as explain and the documentation list it.
struct KnownStrategy {
  const char* name;
  const char* mechanism;
  const StrategyRow* row;  // NULL: not in this version
  // What of its needs is not met, or empty.
  Reason (*unmet)(const Query& query, const Facts& facts);
};
// The rows, and those of the design that this version does not have.
std::vector<KnownStrategy> knownStrategies();
// Why the strategy cannot do the query, a sentence, or empty.
Reason notPossible(const KnownStrategy& strategy, const Query& query, const Facts& facts);

// What AUTO takes, and how that came about.
struct Decision {
  const StrategyRow* row = nullptr;  // an eligible one; NULL where there is none
  std::vector<std::string> steps;    // sentences, in the order in which they were asked
};
Decision decide(const Query& query, const Facts& facts);
// Whether what AUTO takes was measured for such calls of these kernels: here, or for FCCL's own table of such GPUs.
bool isMeasured(const Query& query, const Facts& facts);

// The row that AUTO takes, where there is one.
const StrategyRow& chooseStrategy(const Query& query, const Facts& facts);

}  // namespace fccl
