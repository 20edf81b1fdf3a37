#include "tests/perf/chosen.h"

#include <fmt/format.h>

#include <map>

#include "lib/asked_call.h"
#include "lib/testing.h"
#include "lib/validate.h"
#include "tuner/explain.h"

namespace fccl::perf {
namespace {

// Why another strategy than the one with this name is taken.
std::string whyNot(const Explanation& explanation, const std::string& name) {
  for (const ExplainedStrategy& strategy : explanation.strategies) {
    if (strategy.name == name && !strategy.reason.empty()) return strategy.reason;
  }
  return explanation.steps.back();
}

}  // namespace

Choice choiceOf(const Case& c, bool inPlace, fcclComm_t comm) {
  fcclQuery_t asked = FCCL_QUERY_INITIALIZER;
  asked.pattern = c.pattern;
  asked.dtype = c.dtype;
  asked.op = c.op;
  asked.tokens = c.tokens;
  asked.hidden = c.hidden;
  // Peers read an input in a window while the norm is written, so that one in its place has it staged.
  asked.inputInWindow = c.windows && !(inPlace && traitsOf(c.pattern).normOut) ? 1 : 0;
  asked.outputInWindow = c.windows ? 1 : 0;
  // fcclAllReduce has no strategy of its own: there the communicator's stands for AUTO, where it can.
  if (c.fused()) asked.strategy = c.strategy;
  const Result<Query> query = queryOf(asked);
  if (!query.ok()) return {.strategy = "", .refusal = query.status().message()};

  const Communicator& communicator = testing::communicatorOf(comm);
  const Explanation explanation =
      explain(describeCall(asked, communicator.ranks()), query.value(), communicator.factsForAnyThread(),
              asked.strategy, communicator.options().strategy);
  Choice choice{.strategy = explanation.choice, .refusal = ""};
  const std::string name = strategyName(c.strategy);
  const bool asAsked = c.strategy == fcclStrategyAuto ? !choice.strategy.empty() : choice.strategy == name;
  if (!asAsked) choice.refusal = whyNot(explanation, name);
  return choice;
}

Choices choicesOf(const Case& c, const std::vector<bool>& places, fcclComm_t comm) {
  Choices choices;
  std::map<bool, std::string> refused;
  for (const bool inPlace : places) {
    const Choice choice = choiceOf(c, inPlace, comm);
    if (choice.refusal.empty()) {
      choices.served.push_back(inPlace);
    } else {
      refused[inPlace] = choice.refusal;
    }
  }
  const char* name = strategyName(c.strategy);
  const auto line = [&](const char* place, const std::string& why) {
    choices.refusals += fmt::format("# {}{}: {} cannot serve this: {}\n", describe(c), place, name, why);
  };
  if (choices.served.empty() && !refused.empty() && refused.begin()->second == refused.rbegin()->second) {
    line("", refused.begin()->second);
    return choices;
  }
  for (const auto& [inPlace, why] : refused) line(inPlace ? ", in place" : ", out of place", why);
  return choices;
}

}  // namespace fccl::perf
