// The rendezvous: every rank tells rank 0 where it listens and learns where its successor in the ring does.
//
//   step  from       to         message
//   1     rank r     rank 0     Hello: a nonce
//   2     rank 0     rank r     Challenge: its nonce, and the proof that it knows the id's secret
//   3     rank r     rank 0     Join: rank, number of ranks, time left, endpoint, and the proof
//   4     rank 0     rank r     Answer, once all are there: the successor's endpoint, or why there is no group
//
// Of up to 64 ranks rank 0 holds all connections until then, and a rank that ends meanwhile is known at once. Of more
// it answers "I shall call", the connection is closed, and step 4 comes over a new one to the rank's own listener, rank
// after rank: so rank 0 of a thousand ranks holds only those that are just coming. There a rank that has ended is found
// when it is called, and the end of rank 0 at the time limit.
//
// A proof is SipHash of both nonces and the message, keyed with the secret. Rank 0 serves all connections from one poll
// loop without waiting for any, so that a client that is slow, silent or wrong keeps nobody up.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/endpoint.h"
#include "transport/socket.h"

namespace fccl {

// Where a rank's predecessor finds it. Who connects there shows the ticket's hash, keyed with the secret.
struct RingEndpoint {
  Endpoint endpoint;
  Key128 ticket{};
};

struct RankPlace {
  int rank = 0;
  int ranks = 1;
  Key128 secret{};
  RingEndpoint own;
};

// Rank 0's part. Closes the listener. fcclSystemError at the time limit of any rank, with the ranks that are missing;
// fcclInvalidUsage if a rank comes twice or with another number of ranks; every rank that has arrived gets the same.
// `ownInterface` reaches link-local addresses.
Result<RingEndpoint> rendezvousAsRoot(Listener listener, const RankPlace& place, unsigned ownInterface,
                                      const Deadline& deadline);

struct RootAddress {
  std::vector<SocketAddress> addresses;
  bool fixed = false;  // given as host:port: the listener may come later, or be a former run's for a while
};

// The part of the other ranks, in two halves: the first ends with the secret proved and says by which own address rank
// 0 was reached, so that `own` can be one that is known to work.
class RootConnection {
 public:
  // fcclInvalidUsage if nobody listens there for this id.
  static Result<RootConnection> open(const RootAddress& root, const Key128& secret, const Deadline& deadline);
  SocketAddress ownAddress() const { return localAddress(fd_); }
  // `listener` is that of place.own. `beforeWait`, if any, is called before a wait for rank 0's call.
  Result<RingEndpoint> join(const RankPlace& place, const Listener& listener, const Deadline& deadline,
                            const std::function<void()>& beforeWait = {});

 private:
  Fd fd_;
  Key128 clientNonce_{};
  Key128 rootNonce_{};
};

// "3, 7-12" out of sorted numbers; of more than `most` characters the rest is counted: "3, 7-12 and 40 more".
std::string foldRanges(std::span<const int> numbers, size_t most = 600);

}  // namespace fccl
