#include "lib/group.h"

#include <algorithm>
#include <vector>

#include "base/side_by_side.h"
#include "lib/c_boundary.h"

namespace fccl::group {

constinit thread_local int depth = 0;

namespace {

struct Call {
  fcclComm_t comm;
  bool waits;
  std::function<fcclResult_t()> run;
  Status outcome;  // set where the call has failed

  bool carryOut() {
    const bool succeeded = run() == fcclSuccess;
    if (!succeeded) outcome = threadError();
    return succeeded;
  }
};

struct Pending {
  std::vector<Call> calls;
  Status spoilt;
};
thread_local Pending pending;

// Calls that follow each other on one thread.
using Lane = std::vector<Call*>;

// A call that fails ends its lane: what follows on this communicator would wait for ranks that have gone on.
void runLane(const Lane& lane) {
  (void)std::all_of(lane.begin(), lane.end(), [](Call* call) { return call->carryOut(); });
}

// Call by call of every lane: a launch queue that is full with one rank's calls would wait for another rank's.
void enqueueSideBySide(std::vector<Lane>::const_iterator begin, std::vector<Lane>::const_iterator end) {
  std::vector<Lane> lanes(begin, end);
  for (size_t i = 0; !lanes.empty(); i++) {
    std::erase_if(lanes, [i](const Lane& lane) { return i == lane.size() || !lane[i]->carryOut(); });
  }
}

// One lane per communicator, and per call that has none.
std::vector<Lane> lanesOf(std::vector<Call>& calls) {
  std::vector<Lane> lanes;
  for (Call& call : calls) {
    const auto same = [&](const Lane& lane) { return call.comm != nullptr && lane.front()->comm == call.comm; };
    const auto found = std::find_if(lanes.begin(), lanes.end(), same);
    if (found == lanes.end()) {
      lanes.push_back({&call});
    } else {
      found->push_back(&call);
    }
  }
  return lanes;
}

bool waits(const Lane& lane) {
  return std::any_of(lane.begin(), lane.end(), [](const Call* call) { return call->waits; });
}

// Lanes that wait for each other run side by side; the others only enqueue, before them. A failure: nothing has been
// carried out.
Status carryOut(std::vector<Call>& calls) {
  std::vector<Lane> lanes = lanesOf(calls);
  const auto firstWaiting = std::stable_partition(lanes.begin(), lanes.end(), [](const Lane& l) { return !waits(l); });
  const auto enqueue = [&]() -> Status {
    enqueueSideBySide(lanes.begin(), firstWaiting);
    return {};
  };
  if (firstWaiting == lanes.end()) return enqueue();
  return runSideBySide(static_cast<size_t>(lanes.end() - firstWaiting), enqueue,
                       [&](size_t i) { runLane(firstWaiting[static_cast<std::ptrdiff_t>(i)]); });
}

Status end() {
  if (depth == 0) return failure(fcclInvalidUsage, "There is no group here; fcclGroupStart comes first.");
  if (--depth > 0) return {};
  Pending ending;
  std::swap(ending, pending);
  if (!ending.spoilt.ok()) {
    return failure(ending.spoilt.code(), "Nothing of the group was carried out, since a call in it was wrong: {}",
                   ending.spoilt.message());
  }
  if (const Status status = carryOut(ending.calls); !status.ok()) {
    return failure(status.code(), "Nothing of the group was carried out: {}", status.message());
  }
  for (const Call& call : ending.calls) {
    if (!call.outcome.ok()) return call.outcome;
  }
  return {};
}

}  // namespace

void defer(fcclComm_t comm, bool waits, std::function<fcclResult_t()> call) {
  pending.calls.push_back({comm, waits, std::move(call), {}});
}

fcclResult_t spoil(fcclResult_t result) {
  if (result != fcclSuccess && open() && pending.spoilt.ok()) pending.spoilt = threadError();
  return result;
}

}  // namespace fccl::group

fcclResult_t fcclGroupStart() {
  fccl::group::depth++;
  return fcclSuccess;
}

fcclResult_t fcclGroupEnd() {
  return fccl::boundary("fcclGroupEnd", nullptr, [] { return fccl::group::end(); });
}
