// TCP over IPv4 and IPv6 where every wait has a deadline. All sockets are non-blocking and close on exec.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace fccl {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
};

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // `limit` from now; 0 is no limit.
  explicit Deadline(std::chrono::milliseconds limit);

  bool passed() const { return Clock::now() >= at_; }
  Clock::time_point at() const { return at_; }
  // For poll(2): milliseconds to the deadline, rounded up, at most `most`.
  int pollTimeout(int most = 60'000) const;
  // Moved to the other's time if that comes first; set when it was.
  Deadline earlier(const Deadline& other) const;
  Deadline later(std::chrono::milliseconds by) const;
  // Time since it was set.
  double secondsPassed() const;

 private:
  Clock::time_point start_;
  Clock::time_point at_;
};

class SocketAddress {
 public:
  SocketAddress() = default;  // no address; family() is AF_UNSPEC
  SocketAddress(const sockaddr* address, socklen_t bytes);
  static SocketAddress ipv4(const void* fourBytes, uint16_t port);
  static SocketAddress ipv6(const void* sixteenBytes, uint32_t scope, uint16_t port);
  // "host:port", "address:port" or "[IPv6 address%interface]:port", every address of it. A name is looked up with the
  // time limits of the resolver. fcclInvalidArgument for other text.
  static Result<std::vector<SocketAddress>> parse(const std::string& text);

  int family() const { return storage_.ss_family; }
  uint16_t port() const;
  uint32_t scope() const;            // of an IPv6 address; else 0
  const void* addressBytes() const;  // 4 or 16
  bool isLoopback() const;
  bool isLinkLocal() const;
  bool sameAddress(const SocketAddress& other) const;  // without the port
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t length() const;
  std::string text(bool withPort = true) const;

 private:
  sockaddr_storage storage_{};
};

struct Listener {
  Fd fd;
  uint16_t port = 0;
  bool ipv4 = false;  // which kinds of address reach it
  bool ipv6 = false;

  // Turns away who waits for an accept, also where a forked process still holds the descriptor.
  void close();
};

// On all addresses of the machine. `port` 0: the kernel chooses; else one that a former run has just left is taken.
// `family` AF_UNSPEC: both where the machine has both.
Result<Listener> listenOn(uint16_t port, int family = AF_UNSPEC);

// The next connection; an invalid Fd if none waits. `error` (an errno) says why there is none.
Fd acceptFrom(const Listener& listener, int* error);

// Tries the addresses in turn, again and again. fcclRemoteError if nobody listens at any of them and `retryRefused` is
// false; fcclSystemError at the deadline or where the machine runs out of something.
Result<Fd> connectTo(std::span<const SocketAddress> addresses, const Deadline& deadline, bool retryRefused);

// All of it. fcclRemoteError if the other end has closed, fcclSystemError at the deadline.
Status sendAll(const Fd& fd, const void* data, size_t bytes, const Deadline& deadline);
Status receiveAll(const Fd& fd, void* data, size_t bytes, const Deadline& deadline);

// One call each; bytes moved, 0 if it would block, -1 if the other end has closed or the connection is broken.
ptrdiff_t sendSome(const Fd& fd, const iovec* parts, size_t count);
ptrdiff_t receiveSome(const Fd& fd, void* data, size_t bytes);

// The own address of a connection.
SocketAddress localAddress(const Fd& fd);

// Returns at an event, at the deadline, after `most` milliseconds or at a signal; revents say which.
Status waitFor(std::span<pollfd> fds, const Deadline& deadline, int most = 60'000);

}  // namespace fccl
