// The ring of a bootstrap: rank r sends to r + 1 and receives from r - 1, one TCP connection each.
//
//   operation   steps       bytes sent per rank             waits
//   all-gather  ranks - 1   (ranks - 1) * (16 + bytes)      for the predecessor's block, before it is passed on
//   barrier     ranks - 1   (ranks - 1) * 16                the same, with no bytes
//
// A rank that fails in an operation passes the reason on around the ring, so that every rank returns the same sentence.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "transport/bootstrap.h"
#include "transport/endpoint.h"
#include "transport/rendezvous.h"
#include "transport/socket.h"

namespace fccl {

struct RingFrame;

class Ring : public Bootstrap {
 public:
  // Connects to the successor, whose listener is `successor`, accepts the predecessor on `listener`, and returns when
  // the whole ring is there. `ownInterface` reaches link-local addresses.
  static Result<std::unique_ptr<Bootstrap>> form(const RankPlace& place, const Listener& listener,
                                                 const RingEndpoint& successor, unsigned ownInterface,
                                                 const Deadline& deadline, const BootstrapOptions& options);
  // One rank needs no connection.
  static Result<std::unique_ptr<Bootstrap>> ofOne(const BootstrapOptions& options);

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  Status allGather(void* all, size_t bytes) override;
  Status barrier() override;
  Status agree(const Status& mine) override;
  void abort() override;

 private:
  struct Gather;

  Ring(int rank, int ranks, std::chrono::milliseconds timeout) : rank_(rank), ranks_(ranks), timeout_(timeout) {}
  Status openWakeUp();
  int successor() const { return (rank_ + 1) % ranks_; }
  int predecessor() const { return (rank_ + ranks_ - 1) % ranks_; }
  bool aborted() const;
  Status abortedStatus() const;

  // Moves one block of every rank all the way round. `lateCode` is what the time limit gives.
  Status gather(int operation, char* all, size_t bytes, const Deadline& deadline, fcclResult_t lateCode);
  Status advance(Gather& gather, Deadline deadline, fcclResult_t lateCode);
  int ownerOf(size_t block) const;
  void sendReady(Gather& gather, bool* progress);
  Status receiveReady(Gather& gather, bool* progress);
  Status parse(Gather& gather);
  Status checkFrame(const Gather& gather, const RingFrame& frame) const;
  void passOn(const Gather& gather, const Status& status);

  int rank_;
  int ranks_;
  std::chrono::milliseconds timeout_;
  std::chrono::milliseconds reasonPatience_{0};
  Fd next_;  // to the successor
  Fd previous_;
  Fd wakeUp_;  // readable from abort() on
  std::atomic<bool> aborted_{false};
  uint32_t sequence_ = 0;
  Status broken_;               // the failure that ended the ring
  std::vector<char> incoming_;  // received, not yet parsed: [begin_, end_)
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace fccl
