#include "transport/rendezvous.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <type_traits>

#include "base/check.h"
#include "base/log.h"

namespace fccl {

using std::chrono::milliseconds;

namespace {

constexpr uint64_t kHelloMagic = 0x31306f6c6c654846;  // "FHello01"

struct Hello {
  uint64_t magic = kHelloMagic;
  Key128 nonce{};
};

struct Challenge {
  Key128 nonce{};
  uint64_t proof = 0;
};

struct JoinBody {
  int32_t rank = 0;
  int32_t ranks = 0;
  int64_t millisecondsLeft = 0;
  RingEndpoint ring;
};

struct Join {
  JoinBody body;
  uint64_t proof = 0;
};

constexpr size_t kAnswerText = 1000;

struct Answer {
  int32_t code = 0;
  uint32_t textBytes = 0;
  RingEndpoint successor;
  std::array<char, kAnswerText> text{};
};

static_assert(std::has_unique_object_representations_v<JoinBody>, "padding would be hashed and sent");

uint64_t rootProof(const Key128& secret, const Key128& clientNonce, const Key128& rootNonce) {
  const std::array<uint64_t, 5> seen = {1, clientNonce[0], clientNonce[1], rootNonce[0], rootNonce[1]};
  return sipHash24(secret, seen.data(), sizeof seen);
}

uint64_t joinProof(const Key128& secret, const Key128& clientNonce, const Key128& rootNonce, const JoinBody& body) {
  struct {
    std::array<uint64_t, 5> nonces;
    JoinBody body;
  } const seen = {{2, clientNonce[0], clientNonce[1], rootNonce[0], rootNonce[1]}, body};
  return sipHash24(secret, &seen, sizeof seen);
}

Answer refusal(const Status& status) {
  Answer answer;
  answer.code = status.code();
  answer.textBytes = static_cast<uint32_t>(std::min(status.message().size(), answer.text.size()));
  std::memcpy(answer.text.data(), status.message().data(), answer.textBytes);
  return answer;
}

// A client of rank 0. Joined once `rank` is set.
struct Client {
  Fd fd;
  Deadline::Clock::time_point since;
  Key128 clientNonce{};
  Key128 rootNonce{};
  bool challenged = false;
  int rank = -1;
  RingEndpoint ring;
  std::array<char, sizeof(Join)> in{};
  size_t received = 0;
};

// Nobody needs longer from one message to the next; only clients that have not joined are held to it.
constexpr milliseconds kClientPatience(30'000);
// After a group has failed, the ranks that come late are told why for so long.
constexpr milliseconds kLinger(1'000);
// How long ranks wait beyond their deadline for rank 0, which speaks at the deadline, to name who is missing.
constexpr milliseconds kGrace(1'000);

class Root {
 public:
  Root(Listener listener, const RankPlace& place, const Deadline& deadline)
      : listener_(std::move(listener)),
        place_(place),
        deadline_(deadline),
        present_(static_cast<size_t>(place.ranks)),
        mostRanks_(place.ranks) {
    present_[0] = true;
    arrived_ = 1;
    rings_.resize(present_.size());
    rings_[0] = place.own;
  }

  Result<RingEndpoint> run() {
    while (arrived_ < place_.ranks && failure_.ok()) {
      if (deadline_.passed()) {
        failure_ = missingRanks();
        break;
      }
      if (Status status = serve(deadline_); !status.ok()) failure_ = status;
    }
    for (Client& client : clients_) {
      if (client.rank >= 0) answer(client);
    }
    if (failure_.code() == fcclInvalidUsage) {
      const Deadline linger = deadline_.earlier(Deadline(kLinger));
      while (joins_ + 1 < mostRanks_ && !linger.passed() && serve(linger).ok()) {
      }
    }
    // Whose place is taken, or who comes after the end.
    const Status tooLate = failure(fcclInvalidUsage,
                                   "this id was already used: its group of {} ranks is complete. One id serves one "
                                   "communicator; make a new one with fcclGetUniqueId",
                                   place_.ranks);
    const Answer reply = refusal(failure_.ok() ? tooLate : failure_);
    for (const Client& client : clients_) {
      if (client.rank < 0 && client.challenged) sendNow(client, &reply, sizeof reply);
    }
    listener_.close();
    if (!failure_.ok()) return failure_;
    return rings_[1 % rings_.size()];
  }

 private:
  Status missingRanks() const {
    std::vector<int> missing;
    for (int rank = 0; rank < place_.ranks; ++rank) {
      if (!present_[static_cast<size_t>(rank)]) missing.push_back(rank);
    }
    return failure(
        fcclSystemError,
        "{} {} of {} {} missing after {:.1f} s. All ranks must start with the same id, and reach rank 0 over "
        "the network; FCCL_INIT_TIMEOUT_MS sets the time limit",
        missing.size() == 1 ? "rank" : "ranks", foldRanges(missing), place_.ranks, missing.size() == 1 ? "is" : "are",
        deadline_.secondsPassed());
  }

  // One round: whatever is there is accepted, read and answered.
  Status serve(const Deadline& deadline) {
    polls_.clear();
    polls_.push_back({accepting_ ? listener_.fd.get() : -1, POLLIN, 0});
    for (const Client& client : clients_) polls_.push_back({client.fd.get(), POLLIN | POLLRDHUP, 0});
    constexpr int kLookAgain = 200;  // milliseconds, to find silent clients and free descriptors
    FCCL_TRY(waitFor(polls_, deadline, kLookAgain));
    const size_t known = clients_.size();
    const auto now = Deadline::Clock::now();
    for (size_t i = 0; i < known; ++i) {
      Client& client = clients_[i];
      const bool late = client.rank < 0 && now - client.since > kClientPatience;
      const bool keep = polls_[i + 1].revents == 0 || hear(client);
      if (!keep || late) client.fd.reset();
    }
    std::erase_if(clients_, [](const Client& client) { return !client.fd.valid(); });
    accepting_ = true;
    if (polls_[0].revents != 0) FCCL_TRY(acceptAll());
    return {};
  }

  Status acceptAll() {
    for (;;) {
      int error = 0;
      Client client;
      client.fd = acceptFrom(listener_, &error);
      if (client.fd.valid()) {
        client.since = Deadline::Clock::now();
        clients_.push_back(std::move(client));
        continue;
      }
      if (error == EINTR || error == ECONNABORTED) continue;
      if (error == EMFILE || error == ENFILE) return outOfDescriptors();
      if (error == ENOBUFS || error == ENOMEM) accepting_ = false;  // look again in a while
      return {};
    }
  }

  // Strangers may have taken them: the oldest client that has not said anything goes, else the oldest that has not
  // joined.
  Status outOfDescriptors() {
    auto oldest =
        std::find_if(clients_.begin(), clients_.end(), [](const Client& client) { return !client.challenged; });
    if (oldest == clients_.end()) {
      oldest = std::find_if(clients_.begin(), clients_.end(), [](const Client& client) { return client.rank < 0; });
    }
    if (oldest != clients_.end()) {
      clients_.erase(oldest);
      return {};
    }
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return failure(
        fcclSystemError,
        "rank 0 has no file descriptor left for {} ranks, {} of which have arrived: during initialisation it "
        "holds a connection of each. The limit is {}; raise it with ulimit -n",
        place_.ranks, arrived_, limit.rlim_cur);
  }

  // False: this client is done with.
  bool hear(Client& client) {
    for (;;) {
      const size_t wanted = client.challenged ? sizeof(Join) : sizeof(Hello);
      const ptrdiff_t got = receiveSome(client.fd, client.in.data() + client.received, wanted - client.received);
      if (got < 0) {
        if (client.rank >= 0 && failure_.ok()) {
          failure_ = failure(fcclRemoteError,
                             "rank {} closed its connection before all ranks had arrived: its process "
                             "has ended",
                             client.rank);
        }
        return false;
      }
      if (got == 0) return true;
      client.received += static_cast<size_t>(got);
      if (client.received < wanted) continue;
      client.received = 0;
      if (client.rank >= 0) return true;  // more than a Join: not ours to understand
      if (!(client.challenged ? joined(client) : challenge(client))) return false;
    }
  }

  bool challenge(Client& client) {
    Hello hello;
    std::memcpy(&hello, client.in.data(), sizeof hello);
    Result<Key128> nonce = randomKey();
    if (hello.magic != kHelloMagic || !nonce.ok()) return false;
    client.clientNonce = hello.nonce;
    client.rootNonce = nonce.value();
    client.challenged = true;
    const Challenge reply{client.rootNonce, rootProof(place_.secret, client.clientNonce, client.rootNonce)};
    return sendNow(client, &reply, sizeof reply);
  }

  bool joined(Client& client) {
    Join join;
    std::memcpy(&join, client.in.data(), sizeof join);
    if (join.proof != joinProof(place_.secret, client.clientNonce, client.rootNonce, join.body)) {
      FCCL_WARN("rendezvous: turned away a client that does not know the secret of this id");
      const Answer reply = refusal(failure(fcclInvalidUsage, "rank 0 listens for another id: the secret is wrong"));
      sendNow(client, &reply, sizeof reply);
      return false;
    }
    const int rank = join.body.rank;
    ++joins_;
    mostRanks_ = std::max(mostRanks_, join.body.ranks);
    client.rank = rank;
    client.ring = join.body.ring;
    deadline_ = deadline_.earlier(Deadline(milliseconds(std::max<int64_t>(join.body.millisecondsLeft, 1))));
    const bool fits = join.body.ranks == place_.ranks && rank > 0 && rank < place_.ranks;
    if (fits && !present_[static_cast<size_t>(rank)]) {
      present_[static_cast<size_t>(rank)] = true;
      rings_[static_cast<size_t>(rank)] = client.ring;
      ++arrived_;
    } else if (failure_.ok()) {
      failure_ = join.body.ranks != place_.ranks
                     ? failure(fcclInvalidUsage,
                               "rank {} was started with {} ranks, rank 0 with {}: the number must be the same on all",
                               rank, join.body.ranks, place_.ranks)
                     : failure(fcclInvalidUsage,
                               "rank {} came twice: two ranks have the same number, or this id was already used for "
                               "another group. One id serves one communicator, and each rank in it is given once",
                               rank);
    }
    // Who comes while the group lives waits for it; who comes after its end hears of that.
    if (failureTold_) answer(client);
    return true;
  }

  void answer(Client& client) {
    failureTold_ = !failure_.ok();
    Answer reply = refusal(failure_);
    if (failure_.ok()) reply.successor = rings_[static_cast<size_t>((client.rank + 1) % place_.ranks)];
    sendNow(client, &reply, sizeof reply);
  }

  // What we send always fits into the empty buffer of a connection; one where it does not is broken.
  static bool sendNow(const Client& client, const void* data, size_t bytes) {
    const iovec part{const_cast<void*>(data), bytes};
    return sendSome(client.fd, &part, 1) == static_cast<ptrdiff_t>(bytes);
  }

  Listener listener_;
  RankPlace place_;
  Deadline deadline_;  // of the least patient rank that has arrived
  std::vector<bool> present_;
  int mostRanks_;    // that anyone has said
  int joins_ = 0;    // clients that have joined, rightly or not
  int arrived_ = 0;  // ranks that have, rank 0 included
  std::vector<RingEndpoint> rings_;
  std::vector<Client> clients_;
  std::vector<pollfd> polls_;
  bool accepting_ = true;
  Status failure_;
  bool failureTold_ = false;
};

std::string joinTexts(const std::vector<SocketAddress>& addresses) {
  std::string text;
  for (const SocketAddress& address : addresses) text += (text.empty() ? "" : ", ") + address.text();
  return text;
}

}  // namespace

Result<RingEndpoint> rendezvousAsRoot(Listener listener, const RankPlace& place, const Deadline& deadline) {
  return Root(std::move(listener), place, deadline).run();
}

Result<RootConnection> RootConnection::open(const RootAddress& root, const Key128& secret, const Deadline& deadline) {
  const std::string where = joinTexts(root.addresses);
  for (;;) {
    Result<Fd> connected = connectTo(root.addresses, deadline, root.fixed);
    if (connected.status().code() == fcclRemoteError) {
      return failure(fcclInvalidUsage,
                     "this id was already used, or the process of its rank 0 has ended: {}. One id serves one "
                     "communicator; make a new one with fcclGetUniqueId",
                     connected.status().message());
    }
    if (!connected.ok()) {
      return failure(connected.status().code(), "rank 0 is missing: {}", connected.status().message());
    }
    RootConnection connection;
    connection.fd_ = std::move(connected.value());
    FCCL_TRY_ASSIGN(connection.clientNonce_, randomKey());
    const Hello hello{.nonce = connection.clientNonce_};
    Challenge challenge;
    Status status = sendAll(connection.fd_, &hello, sizeof hello, deadline);
    if (status.ok()) status = receiveAll(connection.fd_, &challenge, sizeof challenge, deadline);
    if (status.code() == fcclSystemError) {
      return failure(fcclSystemError,
                     "rank 0 is missing: it listens at {} but has not called within {:.1f} s ({}); "
                     "FCCL_INIT_TIMEOUT_MS sets the time limit",
                     where, deadline.secondsPassed(), status.message());
    }
    connection.rootNonce_ = challenge.nonce;
    const bool ours =
        status.ok() && challenge.proof == rootProof(secret, connection.clientNonce_, connection.rootNonce_);
    if (ours) return connection;
    const std::string reason = status.ok() ? "it does not know the secret of this id" : "it closed the connection";
    if (!root.fixed) {
      return failure(
          fcclInvalidUsage,
          "this id was already used: the listener at {} is not there for it any more ({}). One id serves one "
          "communicator; make a new one with fcclGetUniqueId",
          where, reason);
    }
    if (deadline.passed()) {
      return failure(fcclSystemError,
                     "rank 0 is missing: for {:.1f} s the listener at {} was not the one of this id ({}); a former run "
                     "may still be there, or ranks have different ids",
                     deadline.secondsPassed(), where, reason);
    }
    std::this_thread::sleep_for(milliseconds(deadline.pollTimeout(50)));
  }
}

Result<RingEndpoint> RootConnection::join(const RankPlace& place, const Deadline& deadline) {
  Join join;
  join.body.rank = place.rank;
  join.body.ranks = place.ranks;
  join.body.millisecondsLeft = std::chrono::ceil<milliseconds>(deadline.at() - Deadline::Clock::now()).count();
  join.body.ring = place.own;
  join.proof = joinProof(place.secret, clientNonce_, rootNonce_, join.body);
  Answer answer;
  Status status = sendAll(fd_, &join, sizeof join, deadline);
  // A root that has just closed may have said why before it did.
  if (status.code() != fcclSystemError) status = receiveAll(fd_, &answer, sizeof answer, deadline.later(kGrace));
  if (status.code() == fcclRemoteError) {
    return failure(fcclRemoteError, "rank 0 closed the connection before all ranks had arrived: its process has ended");
  }
  if (!status.ok()) {
    return failure(fcclSystemError, "rank 0 has not answered within {:.1f} s; FCCL_INIT_TIMEOUT_MS sets the time limit",
                   deadline.secondsPassed());
  }
  if (answer.code != fcclSuccess) {
    const size_t bytes = std::min<size_t>(answer.textBytes, answer.text.size());
    return Status(static_cast<fcclResult_t>(answer.code), std::string(answer.text.data(), bytes));
  }
  return answer.successor;
}

std::string foldRanges(std::span<const int> numbers, size_t most) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    const std::string separator = text.empty() ? "" : ", ";
    const std::string part = end - i == 1   ? fmt::format("{}{}", separator, numbers[i])
                             : end - i == 2 ? fmt::format("{}{}, {}", separator, numbers[i], numbers[i] + 1)
                                            : fmt::format("{}{}-{}", separator, numbers[i], numbers[end - 1]);
    if (text.size() + part.size() > most) return text + fmt::format(" and {} more", numbers.size() - i);
    text += part;
    i = end;
  }
  return text;
}

}  // namespace fccl
