// Which ranks are threads of which process, and the two things that all code that shares memory needs with it: a
// verdict that all ranks hold alike, and a way to hand an object to the other ranks of the same process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "transport/bootstrap.h"
#include "transport/machine.h"

namespace fccl {

// Outcome of a step, the same on all ranks. `broken`: the bootstrap itself failed, so there is no group any more that
// could go on with something else.
struct Verdict {
  Status status;
  bool broken = false;
  bool ok() const { return status.ok(); }
};

// Collective. Success where every rank's `mine` is; else the failure of the lowest rank that has one.
Verdict settle(Bootstrap& bootstrap, const Status& mine);

class ProcessMap {
 public:
  // Collective. fcclInvalidUsage on every rank where two ranks are on different machines.
  static Result<ProcessMap> exchange(Bootstrap& bootstrap);

  int rank() const { return rank_; }
  int ranks() const { return static_cast<int>(leader_.size()); }
  // The lowest rank of r's process. It maps for the whole process, so that a process holds each mapping once.
  int leader(int r) const { return leader_[static_cast<size_t>(r)]; }
  bool isLeader(int r) const { return leader(r) == r; }
  bool isLeader() const { return isLeader(rank_); }
  bool sameProcess(int a, int b) const { return leader(a) == leader(b); }
  bool oneProcess() const;
  // Ranks of this rank's process.
  int localRanks() const;
  // As r itself sees it; means something else, or nothing, in another process namespace.
  pid_t pid(int r) const { return pid_[static_cast<size_t>(r)]; }

 private:
  int rank_ = 0;
  std::vector<int> leader_;
  std::vector<pid_t> pid_;
};

// Collective. Every rank gets the object of its process's leader; `mine` counts on leaders only. Through a process-wide
// table (a cache that says so: an entry lives for the length of this call), because a bare pointer could be followed by
// a rank that is late, after a time limit has let the leader go on.
Result<std::shared_ptr<void>> shareInProcess(Bootstrap& bootstrap, const ProcessMap& processes,
                                             std::shared_ptr<void> mine);

}  // namespace fccl
