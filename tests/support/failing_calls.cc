#include "tests/support/failing_calls.h"

#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>

namespace fccl::test {
namespace {

struct Counter {
  bool counting = false;
  int failAt = 0;
  int made = 0;
  const char* failed = nullptr;
};
thread_local Counter counter;

bool fails(const char* name) {
  if (!counter.counting || ++counter.made != counter.failAt) return false;
  counter.failed = name;
  return true;
}

}  // namespace

void failCall(int n) { counter = {true, n, 0, nullptr}; }

CallsMade endFailing() {
  counter.counting = false;
  return {counter.made, counter.failed != nullptr ? counter.failed : ""};
}

}  // namespace fccl::test

// The linker's --wrap=NAME turns calls of NAME into calls of __wrap_NAME; __real_NAME is the function itself. Each
// fails as the kernel would let it.
#define FCCL_FAILING(type, name, failure, error, parameters, arguments) \
  type __real_##name parameters;                                        \
  type __wrap_##name parameters {                                       \
    if (!fccl::test::fails(#name)) return __real_##name arguments;      \
    errno = error;                                                      \
    return failure;                                                     \
  }

extern "C" {

// clang-format off
FCCL_FAILING(int, socket, -1, EMFILE, (int domain, int kind, int protocol), (domain, kind, protocol))
FCCL_FAILING(int, bind, -1, EACCES, (int fd, const sockaddr* address, socklen_t length), (fd, address, length))
FCCL_FAILING(int, listen, -1, EADDRINUSE, (int fd, int backlog), (fd, backlog))
FCCL_FAILING(int, connect, -1, ENETUNREACH, (int fd, const sockaddr* address, socklen_t length), (fd, address, length))
FCCL_FAILING(int, accept4, -1, EMFILE, (int fd, sockaddr* address, socklen_t* length, int flags), (fd, address, length, flags))
FCCL_FAILING(int, setsockopt, -1, ENOBUFS, (int fd, int level, int option, const void* value, socklen_t length), (fd, level, option, value, length))
FCCL_FAILING(int, getsockopt, -1, ENOBUFS, (int fd, int level, int option, void* value, socklen_t* length), (fd, level, option, value, length))
FCCL_FAILING(int, getsockname, -1, ENOBUFS, (int fd, sockaddr* address, socklen_t* length), (fd, address, length))
FCCL_FAILING(ssize_t, sendmsg, -1, ECONNRESET, (int fd, const msghdr* message, int flags), (fd, message, flags))
FCCL_FAILING(ssize_t, recvmsg, -1, ECONNRESET, (int fd, msghdr* message, int flags), (fd, message, flags))
FCCL_FAILING(ssize_t, recv, -1, ECONNRESET, (int fd, void* data, size_t bytes, int flags), (fd, data, bytes, flags))
FCCL_FAILING(int, poll, -1, ENOMEM, (pollfd* fds, nfds_t count, int timeout), (fds, count, timeout))
FCCL_FAILING(int, eventfd, -1, EMFILE, (unsigned value, int flags), (value, flags))
FCCL_FAILING(int, getifaddrs, -1, ENOMEM, (ifaddrs** all), (all))
FCCL_FAILING(int, gethostname, -1, EPERM, (char* name, size_t length), (name, length))
FCCL_FAILING(ssize_t, getrandom, -1, ENOSYS, (void* data, size_t bytes, unsigned flags), (data, bytes, flags))
FCCL_FAILING(int, memfd_create, -1, ENFILE, (const char* name, unsigned flags), (name, flags))
FCCL_FAILING(int, ftruncate, -1, EFBIG, (int fd, off_t bytes), (fd, bytes))
FCCL_FAILING(int, fallocate, -1, ENOSPC, (int fd, int mode, off_t offset, off_t bytes), (fd, mode, offset, bytes))
FCCL_FAILING(int, fchmod, -1, EPERM, (int fd, mode_t mode), (fd, mode))
FCCL_FAILING(int, linkat, -1, ENOSPC, (int from, const char* name, int to, const char* link, int flags), (from, name, to, link, flags))
FCCL_FAILING(int, fstat, -1, ENOMEM, (int fd, struct stat* file), (fd, file))
FCCL_FAILING(int, stat, -1, ENOMEM, (const char* name, struct stat* file), (name, file))
FCCL_FAILING(int, statvfs, -1, ENOSYS, (const char* name, struct statvfs* space), (name, space))
FCCL_FAILING(DIR*, opendir, nullptr, EMFILE, (const char* name), (name))
FCCL_FAILING(void*, mmap, MAP_FAILED, ENOMEM, (void* at, size_t bytes, int protection, int flags, int fd, off_t offset), (at, bytes, protection, flags, fd, offset))
FCCL_FAILING(int, madvise, -1, ENOMEM, (void* at, size_t bytes, int advice), (at, bytes, advice))
FCCL_FAILING(ssize_t, read, -1, EIO, (int fd, void* data, size_t bytes), (fd, data, bytes))
// clang-format on

int __real_open(const char* name, int flags, ...);
int __wrap_open(const char* name, int flags, ...) {
  if (fccl::test::fails("open")) {
    errno = EMFILE;
    return -1;
  }
  if ((flags & O_CREAT) == 0 && (flags & O_TMPFILE) != O_TMPFILE) return __real_open(name, flags);
  va_list rest;
  va_start(rest, flags);
  const auto mode = va_arg(rest, mode_t);
  va_end(rest);
  return __real_open(name, flags, mode);
}

// Of the library's calls all that have a third argument have a pointer or a number no longer than one.
int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...) {
  if (fccl::test::fails("fcntl")) {
    errno = ENOLCK;
    return -1;
  }
  va_list rest;
  va_start(rest, command);
  void* argument = va_arg(rest, void*);
  va_end(rest);
  return __real_fcntl(fd, command, argument);
}

}  // extern "C"
