#include "transport/fd_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <thread>

#include "base/check.h"

namespace fccl {
namespace {

using namespace std::chrono_literals;

struct Offer {
  int32_t count;
  int32_t fd[kMaxOffers];
  uint64_t device[kMaxOffers];
  uint64_t inode[kMaxOffers];
};

struct Address {
  char name[48];  // empty: rank 0 has no socket
  uint64_t secret[2];
};

// One message carries at most this many descriptors (the kernel allows 253).
constexpr size_t kBatch = 128;

struct Header {
  uint64_t secret[2];
  int32_t rank;  // of the sending process's leader
  int32_t count;
};

struct Plan {
  Bootstrap& bootstrap;
  const ProcessMap& processes;
  std::vector<Offer> offers;
  Address address;
  const Deadline& deadline;

  int rank() const { return processes.rank(); }
  // How many descriptors the process of `leader` offers.
  size_t offered(int leader) const {
    size_t sum = 0;
    for (int r = 0; r < processes.ranks(); ++r) {
      if (processes.leader(r) == leader) sum += static_cast<size_t>(offers[static_cast<size_t>(r)].count);
    }
    return sum;
  }
};

std::vector<int> numbers(const std::vector<Fd>& fds) {
  std::vector<int> result;
  result.reserve(fds.size());
  for (const Fd& fd : fds) result.push_back(fd.get());
  return result;
}

sockaddr_un socketAddress(const char* name, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t size = std::min(std::strlen(name), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name, size);  // after a zero byte: abstract
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  return address;
}

// Sends all of fds, in batches. A full buffer or too many descriptors in flight mean that the peer has yet to read.
Status sendDescriptors(int socket, const uint64_t (&secret)[2], int rank, std::span<const int> fds,
                       const Deadline& deadline) {
  for (size_t sent = 0; sent < fds.size() || sent == 0;) {
    const size_t batch = std::min(fds.size() - sent, kBatch);
    Header header{{secret[0], secret[1]}, rank, static_cast<int32_t>(batch)};
    iovec part{&header, sizeof header};
    alignas(cmsghdr) char control[CMSG_SPACE(kBatch * sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (batch > 0) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(batch * sizeof(int));
      cmsghdr* head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(batch * sizeof(int));
      std::memcpy(CMSG_DATA(head), fds.data() + sent, batch * sizeof(int));
    }
    const ssize_t wrote = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (wrote == static_cast<ssize_t>(sizeof header)) {
      sent += batch;
      if (fds.empty()) break;
      continue;
    }
    if (wrote >= 0) return failure(fcclSystemError, "a Unix socket took {} of {} bytes", wrote, sizeof header);
    if (errno == EINTR) continue;
    if ((errno != EAGAIN && errno != ETOOMANYREFS) || deadline.passed()) {
      return failure(fcclSystemError, "sending file descriptors failed: {}", std::strerror(errno));
    }
    std::this_thread::sleep_for(200us);
  }
  return {};
}

// Appends the `count` descriptors that the other side sends, and checks its secret. A stranger's message is refused.
Status receiveDescriptors(int socket, const uint64_t (&secret)[2], size_t count, const Deadline& deadline, int* rank,
                          std::vector<Fd>* fds) {
  size_t missing = count;
  do {
    Header header{};
    size_t have = 0;
    size_t carried = 0;
    while (have < sizeof header) {
      iovec part{reinterpret_cast<char*>(&header) + have, sizeof header - have};
      alignas(cmsghdr) char control[CMSG_SPACE(kBatch * sizeof(int))] = {};
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN && !deadline.passed()) {
        pollfd readable{socket, POLLIN, 0};
        ::poll(&readable, 1, deadline.pollTimeout());
        continue;
      }
      if (got < 0 && errno == EAGAIN) return failure(fcclSystemError, "no file descriptors came within the time limit");
      if (got < 0) return failure(fcclSystemError, "receiving file descriptors failed: {}", std::strerror(errno));
      for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
        const size_t fdsHere = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < fdsHere; ++i) {
          int fd;
          std::memcpy(&fd, CMSG_DATA(head) + i * sizeof fd, sizeof fd);
          fds->emplace_back(fd);
        }
        carried += fdsHere;
      }
      if ((message.msg_flags & MSG_CTRUNC) != 0) {
        return failure(fcclSystemError,
                       "file descriptors were lost on the way, which happens when the process has no free ones; raise "
                       "the limit (ulimit -n)");
      }
      if (got == 0) return failure(fcclSystemError, "the other side closed the socket before all descriptors came");
      have += static_cast<size_t>(got);
    }
    if (header.secret[0] != secret[0] || header.secret[1] != secret[1] || header.count < 0 ||
        static_cast<size_t>(header.count) != carried || carried > missing || (carried == 0 && missing > 0)) {
      return failure(fcclSystemError, "a message that is not from this group came over a Unix socket");
    }
    missing -= carried;
    *rank = header.rank;
  } while (missing > 0);
  return {};
}

Result<Fd> openListener(Address* address) {
  Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return failure(fcclSystemError, "no Unix socket to be had: {}", std::strerror(errno));
  FCCL_TRY_ASSIGN(const std::string random, randomName());
  FCCL_TRY(randomBytes(address->secret, sizeof address->secret));
  const std::string name = "fccl-" + random;
  socklen_t length;
  const sockaddr_un local = socketAddress(name.c_str(), &length);
  FCCL_SYS(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&local), length));
  FCCL_SYS(::listen(listener.get(), SOMAXCONN));
  std::memcpy(address->name, name.c_str(), name.size() + 1);
  return listener;
}

// Connects to rank 0 and leaves there what this process offers. A connection that is queued there already holds data,
// so rank 0 need not have accepted it.
Result<Fd> connectAndSend(const Plan& plan) {
  if (plan.address.name[0] == '\0') return failure(fcclSystemError, "rank 0 has no Unix socket");
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return failure(fcclSystemError, "no Unix socket to be had: {}", std::strerror(errno));
  socklen_t length;
  const sockaddr_un remote = socketAddress(plan.address.name, &length);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&remote), length) != 0) {
    return failure(fcclSystemError,
                   "rank 0's abstract Unix socket cannot be reached ({}; it ends at the network namespace)",
                   std::strerror(errno));
  }
  std::vector<int> fds;
  for (int r = 0; r < plan.processes.ranks(); ++r) {
    const Offer& offer = plan.offers[static_cast<size_t>(r)];
    if (plan.processes.sameProcess(r, plan.rank())) fds.insert(fds.end(), offer.fd, offer.fd + offer.count);
  }
  // Rank 0 reads after all have sent, so only other groups of this user can make room by reading: give them a moment.
  const Deadline soon = plan.deadline.earlier(Deadline(2s));
  FCCL_TRY(sendDescriptors(socket.get(), plan.address.secret, plan.rank(), fds, soon));
  return socket;
}

// Hands the descriptors in `fds`, which come in rank order, to the ranks that `belongs` picks.
template <class Belongs>
void deal(const Plan& plan, std::vector<Fd> fds, Belongs belongs, PassedDescriptors* got) {
  auto next = fds.begin();
  for (int r = 0; r < plan.processes.ranks(); ++r) {
    if (!belongs(r)) continue;
    for (int i = 0; i < plan.offers[static_cast<size_t>(r)].count; ++i) {
      (*got)[static_cast<size_t>(r)].push_back(std::move(*next++));
    }
  }
}

// Rank 0: takes in what every other process has sent. All of it is in the queue; whoever sent nothing is a stranger.
Status collect(const Plan& plan, int listener, std::vector<Fd>* sockets, PassedDescriptors* got) {
  const Deadline now(-1ms);
  sockets->clear();
  sockets->resize(static_cast<size_t>(plan.processes.ranks()));
  while (true) {
    Fd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid() && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (!socket.valid() && errno == EAGAIN) break;
    if (!socket.valid())
      return failure(fcclSystemError, "accepting a Unix connection failed: {}", std::strerror(errno));
    // Who it is stands in the first message, and so how many descriptors are to come.
    Header header{};
    const ssize_t peeked = ::recv(socket.get(), &header, sizeof header, MSG_PEEK | MSG_DONTWAIT);
    if (peeked != static_cast<ssize_t>(sizeof header) || header.rank < 1 || header.rank >= plan.processes.ranks())
      continue;
    int leader = header.rank;
    Fd& slot = (*sockets)[static_cast<size_t>(leader)];
    std::vector<Fd> fds;
    if (slot.valid() || !plan.processes.isLeader(leader)) continue;
    if (!receiveDescriptors(socket.get(), plan.address.secret, plan.offered(leader), now, &leader, &fds).ok()) {
      continue;
    }
    slot = std::move(socket);
    deal(
        plan, std::move(fds), [&](int r) { return plan.processes.leader(r) == leader; }, got);
  }
  for (int r = 1; r < plan.processes.ranks(); ++r) {
    if (plan.processes.isLeader(r) && !(*sockets)[static_cast<size_t>(r)].valid()) {
      return failure(fcclSystemError,
                     "rank {}'s file descriptors did not arrive at rank 0 (is the limit, ulimit -n, reached?)", r);
    }
  }
  return {};
}

// Rank 0: sends every other process what is not its own.
Status distribute(const Plan& plan, const std::vector<Fd>& sockets, const PassedDescriptors& got) {
  for (int to = 1; to < plan.processes.ranks(); ++to) {
    if (!plan.processes.isLeader(to)) continue;
    std::vector<int> fds;
    for (int r = 0; r < plan.processes.ranks(); ++r) {
      const Offer& offer = plan.offers[static_cast<size_t>(r)];
      if (plan.processes.sameProcess(r, to)) continue;
      if (plan.processes.sameProcess(r, 0)) {
        fds.insert(fds.end(), offer.fd, offer.fd + offer.count);
      } else {
        const std::vector<int> theirs = numbers(got[static_cast<size_t>(r)]);
        fds.insert(fds.end(), theirs.begin(), theirs.end());
      }
    }
    const int socket = sockets[static_cast<size_t>(to)].get();
    FCCL_TRY(sendDescriptors(socket, plan.address.secret, 0, fds, plan.deadline));
  }
  return {};
}

Verdict bySocket(const Plan& plan, Fd listener, const Status& listening, PassedDescriptors* got) {
  const ProcessMap& processes = plan.processes;
  const bool member = processes.isLeader() && plan.rank() != 0;
  Fd toRoot;
  Status status = listening;
  if (member) {
    Result<Fd> connected = connectAndSend(plan);
    status = connected.status();
    if (connected.ok()) toRoot = std::move(connected.value());
  }
  if (Verdict verdict = settle(plan.bootstrap, status); !verdict.ok()) return verdict;

  if (plan.rank() == 0) {
    // Closing the sockets on an error, at the end of this block, frees the members that wait.
    std::vector<Fd> sockets;
    status = collect(plan, listener.get(), &sockets, got);
    listener.reset();
    if (status.ok()) status = distribute(plan, sockets, *got);
  } else if (member) {
    const auto foreign = [&](int r) { return !processes.sameProcess(r, plan.rank()); };
    size_t count = 0;
    for (int r = 0; r < processes.ranks(); ++r) {
      if (foreign(r)) count += static_cast<size_t>(plan.offers[static_cast<size_t>(r)].count);
    }
    int from = 0;
    std::vector<Fd> fds;
    status = receiveDescriptors(toRoot.get(), plan.address.secret, count, plan.deadline, &from, &fds);
    if (status.ok()) deal(plan, std::move(fds), foreign, got);
  }
  return settle(plan.bootstrap, status);
}

// Opens a descriptor of another process once more. The process id may mean another process here, so the file is
// compared before it is opened: opening a stranger's file could do something, and if it is one that this process holds
// locks on, closing it again would drop them (for the same reason no pidfd_getfd, which copies first).
Result<Fd> fetch(pid_t pid, int number, uint64_t device, uint64_t inode) {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid, number);
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0) {
    return failure(fcclSystemError, "{} cannot be looked at: {}", path, std::strerror(errno));
  }
  if (file.st_dev != device || file.st_ino != inode) {
    return failure(fcclSystemError, "{} is another file than the one meant, so process ids mean something else here",
                   path);
  }
  Fd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) return failure(fcclSystemError, "{} cannot be opened: {}", path, std::strerror(errno));
  return fd;
}

Status fetchAll(const Plan& plan, PassedDescriptors* got) {
  for (int r = 0; r < plan.processes.ranks(); ++r) {
    if (plan.processes.sameProcess(r, plan.rank())) continue;
    const Offer& offer = plan.offers[static_cast<size_t>(r)];
    for (int i = 0; i < offer.count; ++i) {
      FCCL_TRY_ASSIGN(Fd fd, fetch(plan.processes.pid(r), offer.fd[i], offer.device[i], offer.inode[i]));
      (*got)[static_cast<size_t>(r)].push_back(std::move(fd));
    }
  }
  return {};
}

}  // namespace

Verdict passDescriptors(Bootstrap& bootstrap, const ProcessMap& processes, std::span<const int> mine,
                        const Deadline& deadline, PassedDescriptors* got) {
  struct Notice {
    Offer offer;
    Address address;
  };
  Notice notice{};
  for (const int fd : mine) {
    const int i = notice.offer.count++;
    struct stat file {};
    (void)::fstat(fd, &file);
    notice.offer.fd[i] = fd;
    notice.offer.device[i] = file.st_dev;
    notice.offer.inode[i] = file.st_ino;
  }
  Fd listener;
  Status listening;
  if (processes.rank() == 0) {
    Result<Fd> opened = openListener(&notice.address);
    listening = opened.status();
    if (opened.ok()) listener = std::move(opened.value());
  }
  const Result<std::vector<Notice>> all = bootstrap.exchange(notice);
  if (!all.ok()) return {all.status(), true};

  Plan plan{bootstrap, processes, {}, all.value()[0].address, deadline};
  for (const Notice& other : all.value()) plan.offers.push_back(other.offer);
  const size_t ranks = static_cast<size_t>(processes.ranks());
  got->clear();
  got->resize(ranks);
  Verdict socket = bySocket(plan, std::move(listener), listening, got);
  if (socket.ok() || socket.broken) return socket;

  got->clear();
  got->resize(ranks);
  Verdict fetched = settle(bootstrap, processes.isLeader() ? fetchAll(plan, got) : Status());
  if (fetched.ok()) return fetched;
  got->clear();
  return {failure(fetched.status.code(), "{}; and {}", socket.status.message(), fetched.status.message()),
          fetched.broken};
}

}  // namespace fccl
