// Rank 0's part.
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/check.h"
#include "base/log.h"
#include "transport/rendezvous.h"
#include "transport/rendezvous_messages.h"

namespace fccl {

using std::chrono::milliseconds;

namespace {

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
// With so many ranks at most all connections are held until the last has come, and an end of a process is seen at once.
constexpr int kMostHeld = 64;
// Of a failed group, one rank whose machine is gone must not use up the time in which the others are told.
constexpr milliseconds kPatienceToRefuse(100);

// A rank that waits for rank 0's call.
struct Waiting {
  int rank = 0;
  RingEndpoint ring;
};

class Root {
 public:
  Root(Listener listener, const RankPlace& place, unsigned ownInterface, const Deadline& deadline)
      : listener_(std::move(listener)),
        place_(place),
        ownInterface_(ownInterface),
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
    callAll();
    told_ = true;
    for (const Client& client : clients_) {
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
        "holds a connection of each, of more than {} ranks those that are just coming. The limit is {}; raise it with "
        "ulimit -n",
        place_.ranks, arrived_, kMostHeld, limit.rlim_cur);
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
    if (told_) answer(client);
    if (told_ || place_.ranks <= kMostHeld) return true;
    waiting_.push_back({rank, client.ring});
    Answer reply;
    reply.code = kCallBack;
    sendNow(client, &reply, sizeof reply);
    return false;
  }

  Answer answerFor(int rank) const {
    Answer answer = refusal(failure_);
    if (failure_.ok()) answer.successor = rings_[static_cast<size_t>((rank + 1) % place_.ranks)];
    return answer;
  }

  void answer(const Client& client) const {
    const Answer reply = answerFor(client.rank);
    sendNow(client, &reply, sizeof reply);
  }

  // One after the other, the successor of each before it: when a rank begins to connect to its successor, that one has
  // taken rank 0's call and expects its predecessor.
  void callAll() {
    std::ranges::sort(waiting_, std::greater(), &Waiting::rank);
    const Deadline grace(kGrace);
    for (const Waiting& waiting : waiting_) {
      if (failure_.ok()) failure_ = call(waiting, deadline_);
      if (!failure_.ok() && !grace.passed()) {
        // It may be the one that cannot be reached, or have been told already.
        const Status refused = call(waiting, grace.earlier(Deadline(kPatienceToRefuse)));
        if (!refused.ok()) FCCL_INFO("rendezvous: {}", refused.message());
      }
    }
  }

  Status call(const Waiting& waiting, const Deadline& deadline) const {
    Result<Fd> connected = connectTo(candidates(waiting.ring.endpoint, ownInterface_), deadline, false);
    Status status = connected.status();
    if (status.ok()) {
      Call call;
      call.answer = answerFor(waiting.rank);
      call.proof = callProof(place_.secret, waiting.ring.ticket, call.answer);
      uint64_t taken = 0;
      status = sendAll(connected.value(), &call, sizeof call, deadline);
      if (status.ok()) status = receiveAll(connected.value(), &taken, sizeof taken, deadline);
      if (status.ok() && taken != kTaken) status = failure(fcclRemoteError, "somebody else answers at its address");
    }
    if (status.code() == fcclRemoteError) {
      return failure(fcclRemoteError, "rank {} ended before all ranks had arrived: {}", waiting.rank, status.message());
    }
    if (!status.ok()) {
      return failure(status.code(), "rank {} has come to the rendezvous, but does not take rank 0's call: {}",
                     waiting.rank, status.message());
    }
    return {};
  }

  // What we send always fits into the empty buffer of a connection; one where it does not is broken.
  static bool sendNow(const Client& client, const void* data, size_t bytes) {
    const iovec part{const_cast<void*>(data), bytes};
    return sendSome(client.fd, &part, 1) == static_cast<ptrdiff_t>(bytes);
  }

  Listener listener_;
  RankPlace place_;
  unsigned ownInterface_;
  Deadline deadline_;  // of the least patient rank that has arrived
  std::vector<bool> present_;
  int mostRanks_;    // that anyone has said
  int joins_ = 0;    // clients that have joined, rightly or not
  int arrived_ = 0;  // ranks that have, rank 0 included
  std::vector<RingEndpoint> rings_;
  std::vector<Client> clients_;
  std::vector<Waiting> waiting_;  // their connections are closed
  std::vector<pollfd> polls_;
  bool accepting_ = true;
  Status failure_;
  bool told_ = false;  // the ranks that had arrived know how it ended
};

}  // namespace

Result<RingEndpoint> rendezvousAsRoot(Listener listener, const RankPlace& place, unsigned ownInterface,
                                      const Deadline& deadline) {
  return Root(std::move(listener), place, ownInterface, deadline).run();
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
