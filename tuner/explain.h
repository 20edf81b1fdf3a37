// A decision in words: what is known, who can do the call and who cannot, and how the choice came about.
#pragma once

#include <optional>

#include "tuner/cost_model.h"
#include "tuner/registry.h"

namespace fccl {

struct ExplainedStrategy {
  std::string name;
  std::string reason;      // why not, a sentence; empty: eligible
  std::string byNameOnly;  // of an eligible one that AUTO does not take: why, a sentence
  std::optional<Cost> cost;
  size_t workspaceBytes = 0;  // where eligible
};

struct Explanation {
  std::string call;                // "RESIDUAL_RMS_NORM, 64 tokens x 8192 of bf16, 8 ranks: 1048576 bytes per rank"
  std::vector<std::string> steps;  // sentences: ranks, links, then those of the decision
  std::string choice;              // the strategy's name; empty: none can do it
  std::vector<ExplainedStrategy> strategies;

  std::string text() const;
};

// Whether the call is done faster than ncclAllReduce does it: by times of both, where the tuning has them; else
// whatever is no strategy of NCCL's is taken to be. The last two as below.
bool fasterThanNccl(const Query& query, const Facts& facts, fcclStrategy_t wanted, fcclStrategy_t standsForAuto);

// `wanted`: by name, or AUTO. `standsForAuto`: what AUTO stands for by configuration, or AUTO.
Explanation explain(const std::string& call, const Query& query, const Facts& facts,
                    fcclStrategy_t wanted = fcclStrategyAuto, fcclStrategy_t standsForAuto = fcclStrategyAuto);

}  // namespace fccl
