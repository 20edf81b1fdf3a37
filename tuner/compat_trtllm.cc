#include "tuner/compat_trtllm.h"

#include <bit>

#include "kernels/host/host_kernels.h"
#include "tuner/static_table.h"

namespace fccl {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;
constexpr int kMostMnnvlRanks = 64;

// The original's column; false where the op is in none.
bool tableOpOf(fcclFusionPattern_t pattern, TableOp* op) {
  switch (pattern) {
    case fcclPatternAllReduce: *op = TableOp::kNone; return true;
    case fcclPatternResidualRmsNorm: *op = TableOp::kResidualRmsNorm; return true;
    case fcclPatternResidualRmsNormQuantFp8:
    case fcclPatternResidualRmsNormOutQuantFp8: *op = TableOp::kQuantFp8; return true;
    case fcclPatternResidualRmsNormQuantNvfp4:
    case fcclPatternResidualRmsNormOutQuantNvfp4: *op = TableOp::kQuantNvfp4; return true;
    default: return false;
  }
}

class Tracer {
 public:
  void step(std::string_view text) { trace_.steps.emplace_back(text); }
  CompatTrace choose(const char* strategy, std::string_view text) {
    step(text);
    trace_.choice = strategy;
    return trace_;
  }

 private:
  CompatTrace trace_;
};

}  // namespace

CompatTrace trtllmTrace(const Facts& facts, fcclFusionPattern_t pattern, int64_t tokens, int64_t hidden,
                        fcclDataType_t dtype) {
  const GroupFacts& group = facts.group;
  Tracer trace;
  if (facts.ranks == 1) return trace.choose("none", "One rank: the input is returned as it is.");
  const bool fabric = group.nodes > 1 && group.oneFabric;
  if (fabric) {
    const bool fuses = pattern == fcclPatternAllReduce || pattern == fcclPatternResidualRmsNorm;
    const bool count = std::has_single_bit(static_cast<unsigned>(facts.ranks)) && facts.ranks <= kMostMnnvlRanks;
    if (fuses && count) return trace.choose("MNNVL", "All ranks in one fabric over several nodes: MNNVL.");
    trace.step(fuses ? "MNNVL takes 2, 4, 8, 16, 32 or 64 ranks: passed on."
                     : "MNNVL, one fabric over several nodes, does not fuse this pattern: passed on.");
  } else {
    trace.step("MNNVL: the ranks are not several nodes of one fabric: passed on.");
  }
  trace.step("LOWPRECISION is not asked for.");
  const int64_t bytes = tokens * hidden * static_cast<int64_t>(host::dtypeBytes(dtype));
  if (bytes > kWorkspaceBytes) {
    return trace.choose("NCCL",
                        fmt::format("{} bytes are more than the workspace of {}: NCCL.", bytes, kWorkspaceBytes));
  }
  trace.step(fmt::format("{} bytes fit the workspace of {}.", bytes, kWorkspaceBytes));
  if (group.nodes > 1) {
    return trace.choose("NCCL", fmt::format("The ranks are on {} nodes, so P2P is off: NCCL, then kernels for what "
                                            "follows.",
                                            group.nodes));
  }
  if (!group.peerAccess) return trace.choose("NCCL", "Some GPUs have no peer access: NCCL.");
  if (!isNvlink(group.link) && group.link != LinkKind::kSelf) {
    return trace.choose("NCCL",
                        fmt::format("Some GPUs have {} and no NVLink between them: NCCL.", linkKindName(group.link)));
  }
  trace.step("One node, peer access and NVLink between all: the table decides.");
  TableOp op{};
  if (!tableOpOf(pattern, &op)) return trace.choose("NCCL", "The table has no column for this pattern: NCCL.");
  const StaticTable* table = findTable("trtllm", group.sm);
  const TableCell* cell = lookUp(*table, {facts.ranks, op, hidden, tokens});
  if (cell == nullptr) {
    return trace.choose("NCCL",
                        fmt::format("Table {} has nothing for so many ranks, columns or tokens: NCCL.", table->name));
  }
  return trace.choose(tableStrategyName(cell->strategy),
                      fmt::format("Table {} ({}): {} ranks, hidden {}, {} tokens: {}.", table->name, table->device,
                                  cell->ranks, cell->hidden, cell->tokens, tableStrategyName(cell->strategy)));
}

}  // namespace fccl
