#include "lib/shim/group.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/side_by_side.h"
#include "lib/shim/real.h"

namespace fccl::shim {
namespace {

struct Waiting {
  std::shared_ptr<Attached> at;
  Call call;
  std::optional<Outcome> done;
};
using Place = std::pair<std::shared_ptr<Attached>, void*>;  // a communicator and a stream

thread_local int depth = 0;
thread_local std::vector<Waiting> waiting;
thread_local std::vector<Place> ncclCalls;

// Calls that follow each other on one thread.
using Lane = std::vector<Waiting*>;

void run(const Lane& lane) {
  for (Waiting* each : lane) each->done = byFccl(*each->at, each->call);
}

// A call of FCCL's returns once it is enqueued, and so one lane does. Not with FCCL_CHECK: then it returns when the
// other ranks have come to theirs, which this thread may have to make as well; so there is a lane for each GPU. Within
// it the order stays: two communicators whose kernels were enqueued in either order would wait for each other.
std::vector<Lane> lanesOf(std::vector<Waiting>& calls) {
  const bool wait = std::ranges::any_of(calls, [](const Waiting& each) { return each.at->policy.checked; });
  std::vector<Lane> lanes;
  for (Waiting& each : calls) {
    const auto found = std::ranges::find_if(
        lanes, [&](const Lane& lane) { return !wait || lane.front()->at->device == each.at->device; });
    if (found == lanes.end()) {
      lanes.push_back({&each});
    } else {
      found->push_back(&each);
    }
  }
  return lanes;
}

// Communicators in the order in which they were made, whatever order this rank has called them in: inside of a group
// NCCL's callers need not agree on one.
Outcome endWaiting() {
  std::vector<Waiting> calls;
  calls.swap(waiting);
  if (calls.empty()) return {};
  std::ranges::stable_sort(calls, {}, [](const Waiting& each) { return each.at->number; });
  const std::vector<Lane> lanes = lanesOf(calls);
  const Status begun = runSideBySide(
      lanes.size(), [] { return Status(); }, [&](size_t i) { run(lanes[i]); });
  if (!begun.ok()) return {begun.code(), fmt::format("ncclGroupEnd: {}", begun.message())};
  Outcome first;
  for (Waiting& each : calls) {
    Outcome done = each.done ? std::move(*each.done) : Outcome{byNccl(each.at, each.call), {}};
    if (first.code == fcclSuccess) first = std::move(done);
  }
  return first;
}

}  // namespace

bool inGroup() { return depth > 0; }

int startGroup() {
  const int code = callReal("ncclGroupStart");
  if (code == fcclSuccess) depth++;
  return code;
}

int endGroup() {
  if (depth != 1) {
    if (depth > 0) depth--;
    return callReal("ncclGroupEnd");
  }
  Outcome first = endWaiting();
  depth = 0;
  std::vector<Place> places;
  places.swap(ncclCalls);
  for (const auto& [at, stream] : places) at->before(stream);
  const int code = callReal("ncclGroupEnd");
  for (const auto& [at, stream] : places) at->after(stream);
  return first.code != fcclSuccess ? tell(std::move(first)) : code;
}

// Nothing is carried out: what waited for it neither.
int simulateGroupEnd(void* info) {
  if (depth > 0 && --depth == 0) {
    waiting.clear();
    ncclCalls.clear();
  }
  return callReal("ncclGroupSimulateEnd", info);
}

void defer(const std::shared_ptr<Attached>& at, const Call& call) { waiting.push_back({at, call, {}}); }

void noteNcclCall(const std::shared_ptr<Attached>& at, void* stream) {
  // Sends and receives come in long rows.
  const Place place{at, stream};
  if (ncclCalls.empty() || ncclCalls.back() != place) ncclCalls.push_back(place);
}

}  // namespace fccl::shim
