#include "lib/shim/group.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "lib/shim/real.h"

namespace fccl::shim {
namespace {

struct Waiting {
  std::shared_ptr<Attached> at;
  Call call;
};
using Place = std::pair<std::shared_ptr<Attached>, void*>;  // a communicator and a stream

thread_local int depth = 0;
thread_local std::vector<Waiting> waiting;
thread_local std::vector<Place> ncclCalls;

// Communicators in the order in which they were made, whatever order this rank has called them in: inside of a group
// NCCL's callers need not agree on one.
Outcome endWaiting() {
  std::vector<Waiting> calls;
  calls.swap(waiting);
  if (calls.empty()) return {};
  std::ranges::stable_sort(calls, {}, [](const Waiting& each) { return each.at->number; });
  Outcome first;
  for (const Waiting& each : calls) {
    std::optional<Outcome> done = byFccl(*each.at, each.call);
    if (!done) done = Outcome{byNccl(each.at, each.call), {}};
    if (first.code == fcclSuccess) first = std::move(*done);
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

void defer(const std::shared_ptr<Attached>& at, const Call& call) { waiting.push_back({at, call}); }

void noteNcclCall(const std::shared_ptr<Attached>& at, void* stream) {
  // Sends and receives come in long rows.
  const Place place{at, stream};
  if (ncclCalls.empty() || ncclCalls.back() != place) ncclCalls.push_back(place);
}

}  // namespace fccl::shim
