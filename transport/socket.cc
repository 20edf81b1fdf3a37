#include "transport/socket.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <thread>

#include "base/check.h"

namespace fccl {

using std::chrono::milliseconds;

void Fd::reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Deadline::Deadline(milliseconds limit) : start_(Clock::now()) {
  // Beyond ten years is never, and keeps the sum below from overflowing.
  constexpr milliseconds kLongest = std::chrono::hours(24 * 3650);
  at_ = start_ + (limit.count() == 0 ? kLongest : std::min(limit, kLongest));
}

int Deadline::pollTimeout(int most) const {
  const auto left = std::chrono::ceil<milliseconds>(at_ - Clock::now()).count();
  return static_cast<int>(std::clamp<decltype(left)>(left, 0, most));
}

Deadline Deadline::earlier(const Deadline& other) const {
  Deadline result = *this;
  result.at_ = std::min(at_, other.at_);
  return result;
}

Deadline Deadline::later(milliseconds by) const {
  Deadline result = *this;
  result.at_ += by;
  return result;
}

double Deadline::secondsPassed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

SocketAddress::SocketAddress(const sockaddr* address, socklen_t bytes) {
  std::memcpy(&storage_, address, std::min<size_t>(bytes, sizeof storage_));
}

SocketAddress SocketAddress::ipv4(const void* fourBytes, uint16_t port) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  in.sin_port = htons(port);
  std::memcpy(&in.sin_addr, fourBytes, sizeof in.sin_addr);
  return SocketAddress(reinterpret_cast<const sockaddr*>(&in), sizeof in);
}

SocketAddress SocketAddress::ipv6(const void* sixteenBytes, uint32_t scope, uint16_t port) {
  sockaddr_in6 in{};
  in.sin6_family = AF_INET6;
  in.sin6_port = htons(port);
  in.sin6_scope_id = scope;
  std::memcpy(&in.sin6_addr, sixteenBytes, sizeof in.sin6_addr);
  return SocketAddress(reinterpret_cast<const sockaddr*>(&in), sizeof in);
}

Result<std::vector<SocketAddress>> SocketAddress::parse(const std::string& text) {
  const size_t colon = text.rfind(':');
  const std::string portText = colon == std::string::npos ? "" : text.substr(colon + 1);
  std::string host = text.substr(0, colon == std::string::npos ? 0 : colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(portText.data(), portText.data() + portText.size(), port);
  const bool badPort = error != std::errc() || end != portText.data() + portText.size() || port == 0;
  if (badPort || host.empty() || (!bracketed && host.find(':') != std::string::npos)) {
    return failure(fcclInvalidArgument,
                   "rendezvous address '{}' is not of the form host:port, 192.0.2.1:port or [2001:db8::1]:port with a "
                   "port of 1 to 65535",
                   text);
  }

  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (bracketed ? AI_NUMERICHOST : 0);
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), portText.c_str(), &hints, &found);
  if (code != 0) {
    return failure(fcclInvalidArgument, "rendezvous address '{}': host '{}' cannot be resolved: {}", text, host,
                   code == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(code));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family == AF_INET || entry->ai_family == AF_INET6) {
      addresses.emplace_back(entry->ai_addr, entry->ai_addrlen);
    }
  }
  if (addresses.empty()) {
    return failure(fcclInvalidArgument, "rendezvous address '{}' has neither an IPv4 nor an IPv6 address", text);
  }
  return addresses;
}

uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
  return 0;
}

uint32_t SocketAddress::scope() const {
  return family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_scope_id : 0;
}

const void* SocketAddress::addressBytes() const {
  if (family() == AF_INET6) return &reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr;
  return &reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr;
}

bool SocketAddress::isLoopback() const {
  const auto* bytes = static_cast<const unsigned char*>(addressBytes());
  if (family() == AF_INET) return bytes[0] == 127;
  return family() == AF_INET6 && std::memcmp(bytes, &in6addr_loopback, 16) == 0;
}

bool SocketAddress::isLinkLocal() const {
  const auto* bytes = static_cast<const unsigned char*>(addressBytes());
  if (family() == AF_INET) return bytes[0] == 169 && bytes[1] == 254;
  return family() == AF_INET6 && bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
}

bool SocketAddress::sameAddress(const SocketAddress& other) const {
  if (family() != other.family() || family() == AF_UNSPEC) return false;
  return std::memcmp(addressBytes(), other.addressBytes(), family() == AF_INET ? 4 : 16) == 0 &&
         scope() == other.scope();
}

socklen_t SocketAddress::length() const { return family() == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6); }

std::string SocketAddress::text(bool withPort) const {
  if (family() != AF_INET && family() != AF_INET6) return "no address";
  char buffer[INET6_ADDRSTRLEN] = {};
  inet_ntop(family(), addressBytes(), buffer, sizeof buffer);
  std::string result = buffer;
  if (scope() != 0) {
    char name[IF_NAMESIZE] = {};
    result += '%';
    result += if_indextoname(scope(), name) != nullptr ? name : std::to_string(scope());
  }
  if (!withPort) return result;
  return family() == AF_INET ? fmt::format("{}:{}", result, port()) : fmt::format("[{}]:{}", result, port());
}

void Listener::close() {
  if (fd.valid()) ::shutdown(fd.get(), SHUT_RDWR);
  fd.reset();
}

namespace {

Result<Listener> listenOnFamily(uint16_t port, int family, bool both) {
  Listener listener;
  listener.fd = Fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  FCCL_SYS(listener.fd.get());
  const int fd = listener.fd.get();
  const int on = 1;
  const int onlyIpv6 = both ? 0 : 1;
  if (port != 0) FCCL_SYS(::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
  if (family == AF_INET6) FCCL_SYS(::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &onlyIpv6, sizeof onlyIpv6));
  const SocketAddress any =
      family == AF_INET6 ? SocketAddress::ipv6(&in6addr_any, 0, port) : SocketAddress::ipv4("\0\0\0\0", port);
  if (::bind(fd, any.get(), any.length()) < 0 || ::listen(fd, SOMAXCONN) < 0) {
    return failure(fcclSystemError, "cannot listen on {}: {}", any.text(), std::strerror(errno));
  }
  listener.port = localAddress(listener.fd).port();
  listener.ipv4 = family == AF_INET || both;
  listener.ipv6 = family == AF_INET6;
  return listener;
}

// A machine with IPv6 switched off may still make the socket, and then refuses to bind it.
bool ipv6Works() {
  const Fd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress any = SocketAddress::ipv6(&in6addr_any, 0, 0);
  return fd.valid() && ::bind(fd.get(), any.get(), any.length()) == 0;
}

}  // namespace

Result<Listener> listenOn(uint16_t port, int family) {
  if (family == AF_UNSPEC)
    return ipv6Works() ? listenOnFamily(port, AF_INET6, true) : listenOnFamily(port, AF_INET, false);
  return listenOnFamily(port, family, false);
}

Fd acceptFrom(const Listener& listener, int* error) {
  Fd fd(::accept4(listener.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  *error = fd.valid() ? 0 : errno;
  if (*error == EMFILE || *error == ENFILE) {
    // Linux takes the descriptor before it looks whether anybody waits.
    pollfd waiting{listener.fd.get(), POLLIN, 0};
    if (::poll(&waiting, 1, 0) == 0) *error = EAGAIN;
  }
  const int on = 1;
  if (fd.valid()) ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

namespace {

// 0 and a connection, or the errno of what went wrong.
int connectOnce(const SocketAddress& address, const Deadline& deadline, Fd* connected) {
  Fd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return errno;
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (::connect(fd.get(), address.get(), address.length()) < 0) {
    if (errno != EINPROGRESS && errno != EINTR) return errno;
    pollfd wait{fd.get(), POLLOUT, 0};
    while (wait.revents == 0) {
      if (deadline.passed()) return ETIMEDOUT;
      if (!waitFor({&wait, 1}, deadline).ok()) return EIO;
    }
    int error = 0;
    socklen_t length = sizeof error;
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) < 0) return errno;
    if (error != 0) return error;
  }
  // Where nobody listens on a local port, the kernel may choose just that port for this end, and connect it to itself.
  const SocketAddress local = localAddress(fd);
  if (local.port() == address.port() && local.sameAddress(address)) return ECONNREFUSED;
  *connected = std::move(fd);
  return 0;
}

}  // namespace

Result<Fd> connectTo(std::span<const SocketAddress> addresses, const Deadline& deadline, bool retryRefused) {
  constexpr int kRefusals = 3;
  milliseconds patience(2'000);  // for one address, so that a dead one does not keep us from the next
  milliseconds pause(10);
  for (int round = 1;; ++round) {
    bool refused = false;
    bool undecided = false;
    std::string attempts;
    for (const SocketAddress& address : addresses) {
      Fd fd;
      const int error = connectOnce(address, deadline.earlier(Deadline(patience)), &fd);
      if (error == 0) return fd;
      attempts += fmt::format("{}{}: {}", attempts.empty() ? "" : "; ", address.text(), std::strerror(error));
      if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM || error == EACCES) {
        return failure(fcclSystemError, "cannot connect to {}", attempts);
      }
      refused = refused || error == ECONNREFUSED;
      undecided = undecided || error == ETIMEDOUT || error == ECONNRESET;
    }
    if (refused && !undecided && !retryRefused && round >= kRefusals) {
      return failure(fcclRemoteError, "nobody listens there ({})", attempts);
    }
    if (deadline.passed()) {
      return failure(fcclSystemError, "no connection within {:.1f} s ({})", deadline.secondsPassed(), attempts);
    }
    std::this_thread::sleep_for(milliseconds(deadline.pollTimeout(static_cast<int>(pause.count()))));
    pause = std::min(2 * pause, milliseconds(200));
    patience = std::min(2 * patience, milliseconds(30'000));
  }
}

Status waitFor(std::span<pollfd> fds, const Deadline& deadline, int most) {
  for (pollfd& entry : fds) entry.revents = 0;
  if (::poll(fds.data(), fds.size(), deadline.pollTimeout(most)) >= 0) return {};
  for (pollfd& entry : fds) entry.revents = 0;
  if (errno == EINTR) return {};
  return failure(fcclSystemError, "poll of {} sockets failed: {}", fds.size(), std::strerror(errno));
}

ptrdiff_t sendSome(const Fd& fd, const iovec* parts, size_t count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = count;
  for (;;) {
    const ssize_t sent = ::sendmsg(fd.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return sent;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
  }
}

ptrdiff_t receiveSome(const Fd& fd, void* data, size_t bytes) {
  for (;;) {
    const ssize_t received = ::recv(fd.get(), data, bytes, MSG_DONTWAIT);
    if (received > 0) return received;
    if (received == 0) return -1;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
  }
}

Status sendAll(const Fd& fd, const void* data, size_t bytes, const Deadline& deadline) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const iovec part{const_cast<char*>(from), bytes};
    const ptrdiff_t sent = sendSome(fd, &part, 1);
    if (sent < 0) return failure(fcclRemoteError, "the other end has closed the connection");
    from += sent;
    bytes -= static_cast<size_t>(sent);
    if (sent > 0) continue;
    if (deadline.passed()) return failure(fcclSystemError, "no progress within {:.1f} s", deadline.secondsPassed());
    pollfd wait{fd.get(), POLLOUT, 0};
    FCCL_TRY(waitFor({&wait, 1}, deadline));
  }
  return {};
}

Status receiveAll(const Fd& fd, void* data, size_t bytes, const Deadline& deadline) {
  char* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ptrdiff_t received = receiveSome(fd, to, bytes);
    if (received < 0) return failure(fcclRemoteError, "the other end has closed the connection");
    to += received;
    bytes -= static_cast<size_t>(received);
    if (received > 0) continue;
    if (deadline.passed()) return failure(fcclSystemError, "no answer within {:.1f} s", deadline.secondsPassed());
    pollfd wait{fd.get(), POLLIN, 0};
    FCCL_TRY(waitFor({&wait, 1}, deadline));
  }
  return {};
}

SocketAddress localAddress(const Fd& fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&storage), &length) < 0) return {};
  SocketAddress address(reinterpret_cast<const sockaddr*>(&storage), length);
  if (address.family() != AF_INET6) return address;
  // An IPv4 connection of a socket for both.
  const auto* in = reinterpret_cast<const sockaddr_in6*>(&storage);
  if (!IN6_IS_ADDR_V4MAPPED(&in->sin6_addr)) return address;
  return SocketAddress::ipv4(in->sin6_addr.s6_addr + 12, ntohs(in->sin6_port));
}

}  // namespace fccl
