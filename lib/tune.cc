// fcclCommTune.
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "lib/asked_call.h"
#include "lib/c_boundary.h"
#include "lib/group.h"
#include "lib/tuning_run.h"
#include "lib/validate.h"

using namespace fccl;

namespace {

constexpr int kMostCalls = 4096;
constexpr int kUsualBudgetMs = 10'000;

Status checkCalls(const fcclQuery_t* calls, int n, int budgetMs) {
  if (calls == nullptr) return failure(fcclInvalidArgument, "calls is NULL.");
  if (n < 1 || n > kMostCalls) {
    return failure(fcclInvalidArgument, "n is {}; it must be from 1 to {}.", n, kMostCalls);
  }
  if (budgetMs < 0) return failure(fcclInvalidArgument, "budgetMs is {}; it must be >= 0.", budgetMs);
  for (int i = 0; i < n; i++) {
    if (const Status wrong = queryOf(calls[i]).status(); !wrong.ok()) {
      return failure(wrong.code(), "calls[{}]: {}", i, wrong.message());
    }
    if (calls[i].strategy == fcclStrategyAuto) continue;
    return failure(fcclInvalidArgument,
                   "calls[{}].strategy is {}; all strategies are timed, leave it fcclStrategyAuto.", i,
                   strategyName(calls[i].strategy));
  }
  return {};
}

// A wrong argument of one rank fails the call on all, so that it is not paired with their next one.
Status tune(Communicator& communicator, const fcclQuery_t* calls, int n, int budgetMs) {
  FCCL_TRY(communicator.usable());
  FCCL_TRY(communicator.bootstrap().agree(checkCalls(calls, n, budgetMs)));
  const auto budget = std::chrono::milliseconds(budgetMs == 0 ? kUsualBudgetMs : budgetMs);
  FCCL_TRY_ASSIGN(const std::unique_ptr<TuningRun> run,
                  TuningRun::begin(communicator, {calls, static_cast<size_t>(n)}, budget));
  const std::shared_ptr<const TuningTable> known = communicator.facts().tuned;
  FCCL_TRY_ASSIGN(const TuningTable results, run->all(known.get()));
  FCCL_INFO("Tuned {} points; no time for {}.", results.points(), run->leftOut());
  run->keep(results);
  return {};
}

fcclResult_t tuneNow(fcclComm_t comm, const fcclQuery_t* calls, int n, int budgetMs) {
  return insideCommunicator("fcclCommTune", comm,
                            [&](Communicator& communicator) { return tune(communicator, calls, n, budgetMs); });
}

}  // namespace

fcclResult_t fcclCommTune(fcclComm_t comm, const fcclQuery_t* calls, int n, int budgetMs) {
  if (!group::open()) return tuneNow(comm, calls, n, budgetMs);
  return group::spoil(withCommunicator("fcclCommTune", comm, [&](Communicator& communicator) -> Status {
    FCCL_TRY(communicator.usable());
    FCCL_TRY(checkCalls(calls, n, budgetMs));
    const std::vector<fcclQuery_t> copy(calls, calls + n);
    group::defer(comm, true, [=] { return tuneNow(comm, copy.data(), n, budgetMs); });
    return {};
  }));
}
