#include "tuner/explain.h"

#include <algorithm>
#include <string_view>

#include "tuner/strategies.h"
#include "tuner/tuning_table.h"

namespace fccl {
namespace {

std::string describeRanks(const Facts& facts) {
  const GroupFacts& group = facts.group;
  std::string text = fmt::format("{} rank{} on {} node{}", facts.ranks, facts.ranks == 1 ? "" : "s", group.nodes,
                                 group.nodes == 1 ? "" : "s");
  if (facts.device == fcclDeviceHost) return text + ", HOST.";
  text += facts.ranksPerDevice == 1 ? ", a GPU each" : fmt::format(", up to {} on a GPU", facts.ranksPerDevice);
  if (group.sm > 0) text += fmt::format(", compute capability {}.{}", group.sm / 10, group.sm % 10);
  return text + ".";
}

std::string describeLinks(const GroupFacts& group) {
  std::string text = fmt::format("The slowest way between two of them: {}", linkKindName(group.link));
  if (group.gigabytesPerSecond > 0) text += fmt::format(", {:g} GB/s each way", group.gigabytesPerSecond);
  text += group.peerAccess ? ", peer access between all" : ", no peer access between some";
  if (group.oneFabric) text += ", one fabric clique";
  return text + (group.multicast ? ", multicast." : ", no multicast.");
}

// The row that a name stands for, with the reason where it cannot do the call.
const StrategyRow* byName(fcclStrategy_t id, const Query& query, const Facts& facts, Reason* reason) {
  const StrategyRow* row = findStrategy(id);
  if (row == nullptr) {
    *reason = "This strategy is not in this version.";
    return nullptr;
  }
  *reason = cannot(*row, query, facts);
  return reason->empty() ? row : nullptr;
}

// The row that a call takes, or NULL; how it comes about is added to `steps`.
const StrategyRow* rowTaken(const Query& query, const Facts& facts, fcclStrategy_t wanted, fcclStrategy_t standsForAuto,
                            std::vector<std::string>* steps) {
  Reason reason;
  if (wanted != fcclStrategyAuto) {
    const StrategyRow* row = byName(wanted, query, facts, &reason);
    steps->push_back(row != nullptr ? fmt::format("{} is asked for by name.", row->name)
                                    : fmt::format("Asked for by name: {}", reason));
    return row;
  }
  if (standsForAuto != fcclStrategyAuto) {
    const StrategyRow* row = byName(standsForAuto, query, facts, &reason);
    steps->push_back(row != nullptr ? fmt::format("AUTO stands for {} (strategy, FCCL_STRATEGY).", row->name)
                                    : fmt::format("AUTO cannot stand for what is configured: {}", reason));
    if (row != nullptr) return row;
  }
  const Decision decision = decide(query, facts);
  steps->insert(steps->end(), decision.steps.begin(), decision.steps.end());
  return decision.row;
}

}  // namespace

bool fasterThanNccl(const Query& query, const Facts& facts, fcclStrategy_t wanted, fcclStrategy_t standsForAuto) {
  std::vector<std::string> steps;
  const StrategyRow* row = rowTaken(query, facts, wanted, standsForAuto, &steps);
  if (row == nullptr || isNccl(row->id)) return false;
  const TuningPoint* point = facts.tuned != nullptr ? facts.tuned->find(seriesOf(query), tuningSize(query)) : nullptr;
  if (point == nullptr) return true;
  const double own = point->mean(row->id);
  const double nccl = point->mean(fcclStrategyNccl);
  return own == 0 || nccl == 0 || own <= nccl;
}

Explanation explain(const std::string& call, const Query& query, const Facts& facts, fcclStrategy_t wanted,
                    fcclStrategy_t standsForAuto) {
  Explanation result;
  result.call = call;
  result.steps.push_back(describeRanks(facts));
  if (facts.device == fcclDeviceCuda && facts.group.link != LinkKind::kSelf) {
    result.steps.push_back(describeLinks(facts.group));
  }
  const StrategyRow* row = rowTaken(query, facts, wanted, standsForAuto, &result.steps);
  if (row != nullptr) result.choice = row->name;
  for (const KnownStrategy& strategy : knownStrategies()) {
    ExplainedStrategy one;
    one.name = strategy.name;
    one.reason = notPossible(strategy, query, facts);
    one.cost = predict(strategy.name, query, facts);
    if (one.reason.empty()) {
      one.workspaceBytes = strategy.row->workspace(query, facts);
      if (strategy.row->byNameOnly != nullptr) one.byNameOnly = strategy.row->byNameOnly(query, facts);
    }
    result.strategies.push_back(std::move(one));
  }
  return result;
}

std::string Explanation::text() const {
  std::string text = call + "\n";
  for (size_t i = 0; i < steps.size(); i++) text += fmt::format("{:2}. {}\n", i + 1, steps[i]);
  text += fmt::format("{:2}. -> {}\n", steps.size() + 1,
                      choice.empty() ? "no strategy of this version can do this call" : choice);
  for (const ExplainedStrategy& strategy : strategies) {
    text += fmt::format("{} {:<16}", strategy.name == choice ? "*" : " ", strategy.name);
    if (strategy.reason.empty()) text += fmt::format("eligible, workspace {} bytes per rank", strategy.workspaceBytes);
    text += strategy.reason;
    if (!strategy.byNameOnly.empty()) text += fmt::format(", {}", strategy.byNameOnly);
    if (strategy.cost && strategy.reason.empty()) {
      text += fmt::format(", model {:.1f} us ({:.1f} + the greater of link {:.1f}, memory {:.1f})",
                          strategy.cost->total(), strategy.cost->fixedMicroseconds, strategy.cost->linkMicroseconds,
                          strategy.cost->memoryMicroseconds);
    }
    text += "\n";
  }
  return text;
}

}  // namespace fccl
