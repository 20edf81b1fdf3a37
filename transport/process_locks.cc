#include "transport/process_locks.h"

#include <fcntl.h>

#include "base/check.h"

namespace fccl {
namespace {

// Far behind any data: a lock needs no file contents under it.
constexpr off_t kFirstByte = off_t{1} << 60;

struct flock rangeLock(off_t start, off_t length) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = start;
  lock.l_len = length;
  return lock;
}

bool lockedByOther(int fd, struct flock lock) { return ::fcntl(fd, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK; }

}  // namespace

Status lockRank(int fd, int rank) {
  struct flock lock = rangeLock(kFirstByte + rank, 1);
  FCCL_SYS(::fcntl(fd, F_SETLK, &lock));
  return {};
}

bool anyRankLocked(int fd) { return lockedByOther(fd, rangeLock(kFirstByte, 0)); }

Result<ProcessLocks> ProcessLocks::take(Fd file, int rank) {
  FCCL_TRY(lockRank(file.get(), rank));
  return ProcessLocks(std::move(file));
}

bool ProcessLocks::held(int rank) const { return lockedByOther(file_.get(), rangeLock(kFirstByte + rank, 1)); }

}  // namespace fccl
