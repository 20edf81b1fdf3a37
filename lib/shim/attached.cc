#include "lib/shim/attached.h"

#include <shared_mutex>
#include <unordered_map>

#include "base/log.h"
#include "fccl_nccl.h"
#include "lib/shim/real.h"

namespace fccl::shim {
namespace {

struct Table {
  std::shared_mutex mutex;
  std::unordered_map<void*, std::shared_ptr<Attached>> entries;
  uint64_t made = 0;
};
// Never destroyed: programs use NCCL until their very end.
Table& table() {
  static auto* const instance = new Table();
  return *instance;
}

// Whether it was this one's turn to go: of two threads that end a communicator, one tells of it.
bool remove(void* ncclComm, const std::shared_ptr<Attached>& entry) {
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  const auto it = all.entries.find(ncclComm);
  if (it == all.entries.end() || it->second != entry) return false;
  all.entries.erase(it);
  return true;
}

void giveBack(Attached& entry, fcclResult_t (*end)(fcclComm_t)) {
  // Acquire: what attach() has made. Release: see Attached::aborted.
  const fcclComm_t comm = entry.comm.exchange(nullptr, std::memory_order_acq_rel);
  if (comm != nullptr && end(comm) != fcclSuccess) FCCL_WARN("NCCL shim: {}", fcclGetLastError(nullptr));
}

void tellCalls(const Attached& entry) {
  // Relaxed: counts for a text.
  FCCL_INFO("NCCL shim: rank {} of {}: ncclAllReduce was served by FCCL {} times, by NCCL {} times.", entry.rank,
            entry.ranks, entry.byFccl.load(std::memory_order_relaxed), entry.byNccl.load(std::memory_order_relaxed));
}

}  // namespace

void attach(void* ncclComm) {
  const Result<Environment> environment = Environment::read();
  if (!environment.ok()) {
    FCCL_WARN("NCCL shim: nothing is served by FCCL: {}", environment.status().message());
    return;
  }
  const Policy policy{environment.value().ncclShim,
                      static_cast<size_t>(environment.value().ncclShimBytes.value_or(kMostBytes)),
                      environment.value().checkCalls.value_or(false)};
  if (policy.mode == NcclShim::kOff) return;
  int device = 0;
  callReal("ncclCommCuDevice", ncclComm, &device);
  auto entry = std::make_shared<Attached>(device);
  entry->policy = policy;
  callReal("ncclCommUserRank", ncclComm, &entry->rank);
  callReal("ncclCommCount", ncclComm, &entry->ranks);
  const bool wanted = entry->ranks > 1 || entry->policy.mode == NcclShim::kAlways;
  fcclComm_t comm = nullptr;
  if (wanted && fcclCommInitNccl(&comm, static_cast<struct ncclComm*>(ncclComm), nullptr) != fcclSuccess) {
    FCCL_INFO("NCCL shim: rank {} of {}: everything goes to NCCL: {}", entry->rank, entry->ranks,
              fcclGetLastError(nullptr));
  }
  entry->comm = comm;
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  entry->number = all.made++;
  all.entries[ncclComm] = std::move(entry);
}

// It stays in the table until FCCL's is gone, so that an abort finds it while this waits for a call that is stuck.
void detach(void* ncclComm) {
  const std::shared_ptr<Attached> entry = find(ncclComm);
  if (entry == nullptr) return;
  {
    const std::lock_guard lock(entry->mutex);
    giveBack(*entry, fcclCommDestroy);
  }
  if (remove(ncclComm, entry)) tellCalls(*entry);
}

void detachAtOnce(void* ncclComm) {
  const std::shared_ptr<Attached> entry = find(ncclComm);
  if (entry == nullptr) return;
  // Relaxed: the release in giveBack() comes after.
  entry->aborted.store(true, std::memory_order_relaxed);
  giveBack(*entry, fcclCommAbort);
  if (remove(ncclComm, entry)) tellCalls(*entry);
}

std::shared_ptr<Attached> find(void* ncclComm) {
  Table& all = table();
  const std::shared_lock lock(all.mutex);
  const auto it = all.entries.find(ncclComm);
  return it == all.entries.end() ? nullptr : it->second;
}

}  // namespace fccl::shim
