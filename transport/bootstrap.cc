#include "transport/bootstrap.h"

#include <cerrno>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "transport/bootstrap_test_hooks.h"
#include "transport/endpoint.h"
#include "transport/interfaces.h"
#include "transport/rendezvous.h"
#include "transport/ring.h"
#include "transport/socket.h"

namespace fccl {

using std::chrono::milliseconds;

namespace {

// Rank 0's listeners, from createId() to the end of the rendezvous, by the secret of their id. An entry without a
// listener belongs to a rendezvous that is under way. A cache: all else of a bootstrap lives in its object.
class ListenerTable {
 public:
  static ListenerTable& instance() {
    static ListenerTable table;
    return table;
  }

  void add(const Key128& secret, Listener listener) {
    const std::lock_guard lock(mutex_);
    listeners_[secret] = std::move(listener);
  }

  // The listener, one without a descriptor where the table knows of none but `fixed` lets rank 0 open it itself, or
  // fcclInvalidUsage. drop() must follow.
  Result<Listener> take(const Key128& secret, bool fixed) {
    const std::lock_guard lock(mutex_);
    const auto found = listeners_.find(secret);
    const bool known = found != listeners_.end();
    if (known && !found->second.fd.valid()) {
      return failure(fcclInvalidUsage,
                     "this id was already used: another rank 0 of this process is forming its group. One id serves one "
                     "communicator; make a new one with fcclGetUniqueId");
    }
    if (!known && !fixed) {
      return failure(
          fcclInvalidUsage,
          "this id was already used, or was made by another process: rank 0 must be of the process that called "
          "fcclGetUniqueId, and one id serves one communicator. Make a new one with fcclGetUniqueId");
    }
    return std::exchange(listeners_[secret], Listener());
  }

  void drop(const Key128& secret) {
    const std::lock_guard lock(mutex_);
    listeners_.erase(secret);
  }

 private:
  std::mutex mutex_;
  std::map<Key128, Listener> listeners_;
};

// Once rank 0 has begun, the id is spent when its rendezvous ends, however it ends: nobody must wait for a rank 0 that
// has given up.
class TakenId {
 public:
  explicit TakenId(const Key128& secret) : secret_(secret) {}
  TakenId(const TakenId&) = delete;
  TakenId& operator=(const TakenId&) = delete;
  ~TakenId() { ListenerTable::instance().drop(secret_); }

 private:
  Key128 secret_;
};

int listenFamily(const BootstrapOptions& options) {
  return options.hooks != nullptr ? options.hooks->family : AF_UNSPEC;
}

// On all addresses at the port of `rendezvous`: its host may be a name that means another address to other ranks.
Result<Listener> listenAtRendezvous(const BootstrapOptions& options) {
  FCCL_TRY_ASSIGN(const std::vector<SocketAddress> addresses, SocketAddress::parse(options.rendezvous));
  // A former run that is just ending still has the port for a moment.
  const Deadline patience(milliseconds(1'500));
  for (;;) {
    Result<Listener> listener = listenOn(addresses.front().port(), listenFamily(options));
    if (listener.ok()) return listener;
    if (patience.passed()) {
      return failure(fcclSystemError, "rank 0 cannot listen at rendezvous address '{}': {}", options.rendezvous,
                     listener.status().message());
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
}

Status checkArguments(int rank, int ranks, const BootstrapOptions& options) {
  if (ranks < 1) return failure(fcclInvalidArgument, "nranks is {}; it must be at least 1", ranks);
  if (rank < 0 || rank >= ranks) {
    return failure(fcclInvalidArgument, "rank is {}; with {} ranks it must be 0 to {}", rank, ranks, ranks - 1);
  }
  if (options.timeout.count() < 0) {
    return failure(fcclInvalidArgument, "time limit is {} ms; it must be positive, or 0 for none",
                   options.timeout.count());
  }
  return {};
}

// The rendezvous as seen by one rank: where its successor listens, and through which interface others reach it.
struct Met {
  RankPlace place;
  Listener listener;  // for the predecessor
  RingEndpoint successor;
  unsigned interface = 0;
};

}  // namespace

Status Bootstrap::createId(const BootstrapOptions& options, fcclUniqueId* id) {
  FCCL_TRY_ASSIGN(const std::vector<NetworkInterface> interfaces, listInterfaces());
  FCCL_TRY_ASSIGN(const NetworkInterface interface, chooseInterface(interfaces, options.interface));
  FCCL_TRY_ASSIGN(Listener listener,
                  options.rendezvous.empty() ? listenOn(0, listenFamily(options)) : listenAtRendezvous(options));
  IdContents contents;
  FCCL_TRY_ASSIGN(contents.secret, randomKey());
  contents.root = makeEndpoint(listener, interface);
  FCCL_INFO("unique id: rank 0 listens at port {}, interface {} ({})", listener.port, interface.name,
            interface.addresses.front().text(false));
  ListenerTable::instance().add(contents.secret, std::move(listener));
  *id = packId(contents);
  return {};
}

namespace {

Result<Met> meetAsRoot(Listener root, Met met, const std::vector<NetworkInterface>& interfaces,
                       const Deadline& deadline, const BootstrapOptions& options) {
  if (!root.fd.valid()) {
    FCCL_TRY_ASSIGN(root, listenAtRendezvous(options));
  }
  if (met.place.ranks == 1) {
    root.close();
    return met;
  }
  FCCL_TRY_ASSIGN(const NetworkInterface interface, chooseInterface(interfaces, options.interface));
  met.place.own.endpoint = makeEndpoint(met.listener, interface);
  met.interface = interface.index;
  FCCL_TRY_ASSIGN(met.successor, rendezvousAsRoot(std::move(root), met.place, met.interface, deadline));
  return met;
}

Result<Met> meetRoot(const IdContents& id, Met met, const std::vector<NetworkInterface>& interfaces,
                     const Deadline& deadline, const BootstrapOptions& options) {
  FCCL_TRY_ASSIGN(const NetworkInterface first, chooseInterface(interfaces, options.interface));
  RootAddress root;
  root.fixed = !options.rendezvous.empty();
  if (root.fixed) {
    FCCL_TRY_ASSIGN(root.addresses, SocketAddress::parse(options.rendezvous));
  } else {
    root.addresses = candidates(id.root, first.index);
  }
  FCCL_TRY_ASSIGN(RootConnection connection, RootConnection::open(root, id.secret, deadline));

  const SocketAddress own = connection.ownAddress();
  FCCL_TRY_ASSIGN(const NetworkInterface interface,
                  chooseInterface(interfaces, options.interface, own.isLoopback() ? SocketAddress() : own));
  met.place.own.endpoint = makeEndpoint(met.listener, interface, own.family());
  met.interface = interface.index;
  const auto beforeWait = [&] {
    if (options.hooks != nullptr && options.hooks->before) options.hooks->before(met.place.rank, BootstrapStep::kWait);
  };
  FCCL_TRY_ASSIGN(met.successor, connection.join(met.place, met.listener, deadline, beforeWait));
  return met;
}

}  // namespace

Result<std::unique_ptr<Bootstrap>> Bootstrap::connect(const fcclUniqueId& id, int rank, int ranks,
                                                      const BootstrapOptions& options) {
  FCCL_TRY(checkArguments(rank, ranks, options));
  FCCL_TRY_ASSIGN(const IdContents contents, unpackId(id));
  const Deadline deadline(options.timeout);
  Listener root;
  std::optional<TakenId> taken;
  if (rank == 0) {
    FCCL_TRY_ASSIGN(root, ListenerTable::instance().take(contents.secret, !options.rendezvous.empty()));
    taken.emplace(contents.secret);
  }
  FCCL_TRY_ASSIGN(const std::vector<NetworkInterface> interfaces, listInterfaces());
  FCCL_TRY(chooseInterface(interfaces, options.interface).status());

  Met met;
  met.place.rank = rank;
  met.place.ranks = ranks;
  met.place.secret = contents.secret;
  if (ranks > 1) {
    FCCL_TRY_ASSIGN(met.listener, listenOn(0, listenFamily(options)));
    FCCL_TRY_ASSIGN(met.place.own.ticket, randomKey());
  }
  if (options.hooks != nullptr && options.hooks->before) options.hooks->before(rank, BootstrapStep::kJoin);
  if (rank == 0) {
    FCCL_TRY_ASSIGN(met, meetAsRoot(std::move(root), std::move(met), interfaces, deadline, options));
    taken.reset();
  } else {
    FCCL_TRY_ASSIGN(met, meetRoot(contents, std::move(met), interfaces, deadline, options));
  }
  if (ranks == 1) return Ring::ofOne(options);
  FCCL_TRY_ASSIGN(std::unique_ptr<Bootstrap> ring,
                  Ring::form(met.place, met.listener, met.successor, met.interface, deadline, options));
  FCCL_INFO("rank {} of {}: connected after {:.3f} s", rank, ranks, deadline.secondsPassed());
  return ring;
}

}  // namespace fccl
