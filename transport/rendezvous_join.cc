// The part of the ranks other than 0.
#include <chrono>
#include <thread>

#include "base/check.h"
#include "transport/gate.h"
#include "transport/rendezvous.h"
#include "transport/rendezvous_messages.h"

namespace fccl {

using std::chrono::milliseconds;

namespace {

std::string joinTexts(const std::vector<SocketAddress>& addresses) {
  std::string text;
  for (const SocketAddress& address : addresses) text += (text.empty() ? "" : ", ") + address.text();
  return text;
}

Result<Answer> waitForCall(const RankPlace& place, const Listener& listener, const Deadline& deadline) {
  Call call;
  Gate gate(listener, sizeof call, [&](const char* bytes) {
    std::memcpy(&call, bytes, sizeof call);
    return call.proof == callProof(place.secret, place.own.ticket, call.answer);
  });
  const Deadline patience = deadline.later(kGrace);
  Result<Fd> root = gate.accept(nullptr, patience);
  if (!root.ok()) {
    if (!patience.passed()) return root.status();
    return failure(fcclSystemError,
                   "rank 0 has not called rank {} within {:.1f} s, though it was at the rendezvous: it has ended, or "
                   "ranks are missing; FCCL_INIT_TIMEOUT_MS sets the time limit",
                   place.rank, deadline.secondsPassed());
  }
  FCCL_TRY(sendAll(root.value(), &kTaken, sizeof kTaken, patience));
  return call.answer;
}

}  // namespace

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

Result<RingEndpoint> RootConnection::join(const RankPlace& place, const Listener& listener, const Deadline& deadline,
                                          const std::function<void()>& beforeWait) {
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
  if (answer.code == kCallBack) {
    fd_.reset();
    if (beforeWait) beforeWait();
    FCCL_TRY_ASSIGN(answer, waitForCall(place, listener, deadline));
  }
  if (answer.code != fcclSuccess) {
    const size_t bytes = std::min<size_t>(answer.textBytes, answer.text.size());
    return Status(static_cast<fcclResult_t>(answer.code), std::string(answer.text.data(), bytes));
  }
  return answer.successor;
}

}  // namespace fccl
