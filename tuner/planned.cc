// Strategies of the design that this version does not have: what each would need, so that decisions can be traced for
// machines that it is for. A row of the registry takes the place of the entry with its name.
#include <algorithm>

#include "tuner/needs.h"
#include "tuner/strategies.h"

namespace fccl {
namespace {

const KnownStrategy kPlanned[] = {
    {"SYMM_MEM", "the switch reduces and stores (multimem)", nullptr,
     [](const Query& query, const Facts& facts) {
       return firstOf({needCuda("SYMM_MEM", facts), needNoNorm("SYMM_MEM", query),
                       needGeneration("SYMM_MEM", facts, 90), needMulticast("SYMM_MEM", facts),
                       needOneNvlinkDomain("SYMM_MEM", facts)});
     }},
    {"MULTICAST_FUSED", "the switch reduces, the epilogue follows in registers, the switch sends to all", nullptr,
     [](const Query&, const Facts& facts) {
       return firstOf({needCuda("MULTICAST_FUSED", facts), needGeneration("MULTICAST_FUSED", facts, 90),
                       needMulticast("MULTICAST_FUSED", facts), needOneNvlinkDomain("MULTICAST_FUSED", facts)});
     }},
    {"MNNVL", "ONESHOT and TWOSHOT over memory that is mapped across nodes, with all patterns fused", nullptr,
     [](const Query&, const Facts& facts) {
       return firstOf({needCuda("MNNVL", facts), needGeneration("MNNVL", facts, 90),
                       needOneNvlinkDomain("MNNVL", facts), needSeveralNodes("MNNVL", facts)});
     }},
    {"HIERARCHICAL", "reduced in each node, across nodes by NCCL or MPI, then sent to all of a node", nullptr,
     [](const Query&, const Facts& facts) { return needSeveralNodes("HIERARCHICAL", facts); }},
};

}  // namespace

std::vector<KnownStrategy> knownStrategies() {
  std::vector<KnownStrategy> known;
  for (const StrategyRow& row : strategies()) known.push_back({row.name, row.mechanism, &row, row.eligible});
  for (const KnownStrategy& planned : kPlanned) {
    const auto sameName = [&](const KnownStrategy& other) { return std::string_view(other.name) == planned.name; };
    if (std::ranges::none_of(known, sameName)) known.push_back(planned);
  }
  return known;
}

Reason notPossible(const KnownStrategy& strategy, const Query& query, const Facts& facts) {
  if (strategy.row != nullptr) return cannot(*strategy.row, query, facts);
  const Reason unmet = strategy.unmet(query, facts);
  if (!unmet.empty()) return fmt::format("not in this version, and {}", unmet);
  return "not in this version; these ranks and this call have what it needs.";
}

}  // namespace fccl
