#include "transport/process_map.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "base/check.h"

namespace fccl {
namespace {

struct Identity {
  char bootId[40];
  ProcessToken token;
  int32_t pid;
  int32_t unused;
};

class HandoverTable {
 public:
  static HandoverTable& instance() {
    static HandoverTable table;
    return table;
  }
  uint64_t put(std::shared_ptr<void> object) {
    std::lock_guard lock(mutex_);
    entries_.emplace(++lastKey_, std::move(object));
    return lastKey_;
  }
  std::shared_ptr<void> get(uint64_t key) {
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(key);
    return found == entries_.end() ? nullptr : found->second;
  }
  void erase(uint64_t key) {
    std::lock_guard lock(mutex_);
    entries_.erase(key);
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<void>> entries_;
  uint64_t lastKey_ = 0;
};

}  // namespace

Verdict settle(Bootstrap& bootstrap, const Status& mine) {
  Result<std::vector<uint8_t>> fine = bootstrap.exchange<uint8_t>(mine.ok());
  if (!fine.ok()) return {mine.ok() ? fine.status() : mine, true};
  if (std::ranges::all_of(fine.value(), [](uint8_t ok) { return ok != 0; })) return {};
  return {bootstrap.agree(mine), false};
}

Result<ProcessMap> ProcessMap::exchange(Bootstrap& bootstrap) {
  Identity mine{};
  const Result<ProcessToken> token = processToken();
  if (token.ok()) mine.token = token.value();
  mine.pid = ::getpid();
  const std::string boot = bootId();
  std::memcpy(mine.bootId, boot.data(), std::min(boot.size(), sizeof mine.bootId - 1));
  FCCL_TRY(settle(bootstrap, token.status()).status);
  FCCL_TRY_ASSIGN(const std::vector<Identity> all, bootstrap.exchange(mine));

  const size_t ranks = all.size();
  size_t known = ranks;
  for (size_t r = 0; r < ranks; ++r) {
    // A rank that cannot read its boot id may still be here; whether it can reach the memory will show.
    if (all[r].bootId[0] == '\0') continue;
    if (known == ranks) known = r;
    if (std::memcmp(all[r].bootId, all[known].bootId, sizeof all[r].bootId) != 0) {
      return failure(
          fcclInvalidUsage,
          "rank {} and rank {} are on different machines (their kernels' boot ids are {} and {}), but a HOST "
          "communicator spans one machine; start all its ranks on one",
          known, r, all[known].bootId, all[r].bootId);
    }
  }

  ProcessMap map;
  map.rank_ = bootstrap.rank();
  for (size_t r = 0; r < ranks; ++r) {
    size_t leader = 0;
    while (all[leader].token != all[r].token) ++leader;
    map.leader_.push_back(static_cast<int>(leader));
    map.pid_.push_back(all[r].pid);
  }
  return map;
}

bool ProcessMap::oneProcess() const {
  return std::ranges::all_of(leader_, [](int leader) { return leader == 0; });
}

int ProcessMap::localRanks() const { return static_cast<int>(std::ranges::count(leader_, leader(rank_))); }

Result<std::shared_ptr<void>> shareInProcess(Bootstrap& bootstrap, const ProcessMap& processes,
                                             std::shared_ptr<void> mine) {
  HandoverTable& table = HandoverTable::instance();
  const uint64_t key = processes.isLeader() ? table.put(mine) : 0;
  const Result<std::vector<uint64_t>> keys = bootstrap.exchange(key);
  Status status = keys.status();
  if (status.ok() && !processes.isLeader()) {
    mine = table.get(keys.value()[static_cast<size_t>(processes.leader(processes.rank()))]);
    if (mine == nullptr) status = failure(fcclSystemError, "the rank that made the memory has given up waiting");
  }
  if (keys.ok()) status = settle(bootstrap, status).status;
  if (processes.isLeader()) table.erase(key);
  FCCL_TRY(status);
  return mine;
}

}  // namespace fccl
