// Tells whether the process of a rank still lives, by a lock that the kernel drops when a process ends.
#pragma once

#include "base/status.h"
#include "transport/socket.h"

namespace fccl {

// A file that all processes of a group have open; each locks the byte of its rank.
//
// The locks are the old process-associated ones (F_SETLK), not those of an open file description (F_OFD_SETLK): a
// forked child, such as a DataLoader worker, shares the descriptions of its parent and would keep a dead rank's lock
// alive, while process-associated locks are not inherited. The kernel gives them back when the process exits, before
// its parent reaps it, so a zombie counts as dead. They work across process namespaces, where a process id says
// nothing.
//
// Their known trap: a process loses them as soon as it closes any descriptor of the same file. So each process has
// exactly one descriptor of it (its leader opens it, its other ranks share the object), and never duplicates it. What a
// peer or a forked child closes is of no matter; nor is a copy that is under way in a socket.
class ProcessLocks {
 public:
  ProcessLocks() = default;
  // Takes the byte of `rank`.
  static Result<ProcessLocks> take(Fd file, int rank);

  int fd() const { return file_.get(); }
  // Whether another process holds the byte of `rank`; true where the kernel does not tell.
  bool held(int rank) const;

 private:
  explicit ProcessLocks(Fd file) : file_(std::move(file)) {}
  Fd file_;
};

Status lockRank(int fd, int rank);
// Whether another process holds any rank's byte.
bool anyRankLocked(int fd);

}  // namespace fccl
