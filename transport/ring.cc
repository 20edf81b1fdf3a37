#include "transport/ring.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "base/check.h"
#include "base/log.h"
#include "transport/bootstrap_test_hooks.h"
#include "transport/gate.h"

namespace fccl {

using std::chrono::milliseconds;

namespace {

constexpr uint16_t kFrameMagic = 0xfcc1;
constexpr size_t kStatusText = 1000;  // bytes of an error's sentence that travel
constexpr size_t kIncomingBytes = size_t{64} * 1024;
// A failed rank gives its successor so long to take the reason.
constexpr milliseconds kPassOnPatience(1'000);
// A rank whose successor has closed waits so long for the reason.
constexpr milliseconds kReasonPatience(500);
// While a ring forms, one that has a gap has nobody who knows the reason: its ranks end one after the other, each after
// this time, all within so long.
constexpr milliseconds kGapPatience(2'000);

enum Operation : uint8_t { kFailure = 0, kAllGather, kBarrier, kAgreeCode, kAgreeText };

const char* operationName(int operation) {
  constexpr std::array<const char*, 5> kNames = {"failure", "all-gather", "barrier", "agreement", "agreement's text"};
  return operation >= 0 && operation < 5 ? kNames[static_cast<size_t>(operation)] : "unknown operation";
}

// What the two ends of a new ring connection say.
struct RingHello {
  uint64_t magic = 0x3130676e69524346;  // "FCRing01"
  int64_t rank = 0;
  uint64_t proof = 0;
};

uint64_t ringProof(const Key128& secret, uint64_t purpose, const Key128& ticket, int rank) {
  const std::array<uint64_t, 4> seen = {purpose, ticket[0], ticket[1], static_cast<uint64_t>(rank)};
  return sipHash24(secret, seen.data(), sizeof seen);
}
constexpr uint64_t kFromPredecessor = 3;
constexpr uint64_t kToPredecessor = 4;

Status closedBy(int rank) {
  return failure(
      fcclRemoteError,
      "rank {} closed its connection: its process has ended, or it has aborted or destroyed its communicator", rank);
}

Result<Fd> acceptPredecessor(const RankPlace& place, const Listener& listener, const Fd& next,
                             const Deadline& deadline) {
  const int predecessor = (place.rank + place.ranks - 1) % place.ranks;
  Gate gate(listener, sizeof(RingHello), [&](const char* bytes) {
    RingHello hello;
    std::memcpy(&hello, bytes, sizeof hello);
    return hello.magic == RingHello().magic && hello.rank == predecessor &&
           hello.proof == ringProof(place.secret, kFromPredecessor, place.own.ticket, predecessor);
  });
  Result<Fd> accepted = gate.accept(&next, deadline);
  if (accepted.status().code() == fcclRemoteError) return closedBy((place.rank + 1) % place.ranks);
  if (accepted.ok() || !deadline.passed()) return accepted;
  return failure(fcclSystemError,
                 "rank {} has not connected to rank {} within {:.1f} s, though it was at the rendezvous: it has "
                 "stopped, or cannot reach the address of rank {}",
                 predecessor, place.rank, deadline.secondsPassed(), place.rank);
}

}  // namespace

// Before each block, on its way round.
struct RingFrame {
  uint16_t magic = kFrameMagic;
  uint8_t operation = 0;
  uint8_t code = 0;       // of a failure
  uint32_t sequence = 0;  // of the operation
  uint64_t bytes = 0;     // that follow: the block, or a failure's text
};
static_assert(std::has_unique_object_representations_v<RingFrame>);

// One operation under way. The k-th block that a rank sends is its own for k = 0, else the (k-1)-th that it received.
struct Ring::Gather {
  RingFrame frame;
  char* all = nullptr;
  size_t bytes = 0;
  size_t blocks = 0;     // to send, and to receive
  size_t sentBytes = 0;  // frames included
  size_t receivedBlocks = 0;
  size_t partBytes = 0;  // of the block that is arriving
  bool inBlock = false;  // its frame has been read
  bool successorGone = false;

  size_t unit() const { return sizeof frame + bytes; }
  bool sent() const { return sentBytes == blocks * unit(); }
  bool received() const { return receivedBlocks == blocks; }
  // Bytes that may be sent now.
  size_t readyBytes() const { return std::min(receivedBlocks + 1, blocks) * unit() - sentBytes; }
};

Result<std::unique_ptr<Bootstrap>> Ring::ofOne(const BootstrapOptions& options) {
  std::unique_ptr<Ring> ring(new Ring(0, 1, options.timeout));
  FCCL_TRY(ring->openWakeUp());
  return std::unique_ptr<Bootstrap>(std::move(ring));
}

Result<std::unique_ptr<Bootstrap>> Ring::form(const RankPlace& place, const Listener& listener,
                                              const RingEndpoint& successor, unsigned ownInterface,
                                              const Deadline& deadline, const BootstrapOptions& options) {
  const auto step = [&](BootstrapStep which) {
    if (options.hooks != nullptr && options.hooks->before) options.hooks->before(place.rank, which);
  };
  std::unique_ptr<Ring> ring(new Ring(place.rank, place.ranks, options.timeout));
  FCCL_TRY(ring->openWakeUp());
  ring->incoming_.resize(kIncomingBytes);

  // Nothing here waits for another rank's step but the last: the kernel takes connection and greeting into the backlog.
  step(BootstrapStep::kRingConnect);
  Result<Fd> connected = connectTo(candidates(successor.endpoint, ownInterface), deadline, false);
  if (!connected.ok()) {
    return failure(connected.status().code(), "rank {} cannot connect to rank {}: {}", place.rank, ring->successor(),
                   connected.status().message());
  }
  ring->next_ = std::move(connected.value());
  RingHello hello;
  hello.rank = place.rank;
  hello.proof = ringProof(place.secret, kFromPredecessor, successor.ticket, place.rank);
  if (Status status = sendAll(ring->next_, &hello, sizeof hello, deadline); !status.ok()) {
    return status.code() == fcclRemoteError ? closedBy(ring->successor()) : status;
  }

  step(BootstrapStep::kRingAccept);
  FCCL_TRY_ASSIGN(ring->previous_, acceptPredecessor(place, listener, ring->next_, deadline));
  const uint64_t welcome = ringProof(place.secret, kToPredecessor, place.own.ticket, ring->predecessor());
  if (Status status = sendAll(ring->previous_, &welcome, sizeof welcome, deadline); !status.ok()) {
    return status.code() == fcclRemoteError ? closedBy(ring->predecessor()) : status;
  }

  step(BootstrapStep::kRingCheck);
  uint64_t answer = 0;
  if (Status status = receiveAll(ring->next_, &answer, sizeof answer, deadline); !status.ok()) {
    if (status.code() == fcclRemoteError) return closedBy(ring->successor());
    return failure(status.code(), "rank {} has not taken the connection of rank {} within {:.1f} s", ring->successor(),
                   place.rank, deadline.secondsPassed());
  }
  if (answer != ringProof(place.secret, kToPredecessor, successor.ticket, place.rank)) {
    return failure(fcclSystemError,
                   "the listener that rank {} reached in place of rank {} does not know the id's secret", place.rank,
                   ring->successor());
  }
  ring->reasonPatience_ = std::min(kReasonPatience, kGapPatience / place.ranks);
  FCCL_TRY(ring->gather(kBarrier, nullptr, 0, deadline, fcclSystemError));
  ring->reasonPatience_ = kReasonPatience;
  return std::unique_ptr<Bootstrap>(std::move(ring));
}

Status Ring::openWakeUp() {
  wakeUp_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  FCCL_SYS(wakeUp_.get());
  return {};
}

Status Ring::allGather(void* all, size_t bytes) {
  return gather(kAllGather, static_cast<char*>(all), bytes, Deadline(timeout_), fcclRemoteError);
}

Status Ring::barrier() { return gather(kBarrier, nullptr, 0, Deadline(timeout_), fcclRemoteError); }

Status Ring::agree(const Status& mine) {
  const Deadline deadline(timeout_);
  std::vector<int32_t> codes(static_cast<size_t>(ranks_));
  codes[static_cast<size_t>(rank_)] = mine.code();
  Status status = gather(kAgreeCode, reinterpret_cast<char*>(codes.data()), sizeof codes[0], deadline, fcclRemoteError);
  // Where the ring fails, a failure of one's own is the nearer cause.
  if (!status.ok()) return mine.ok() ? status : mine;
  const auto first = std::find_if(codes.begin(), codes.end(), [](int32_t code) { return code != fcclSuccess; });
  if (first == codes.end()) return {};

  using Text = std::array<char, kStatusText>;
  std::vector<Text> texts(codes.size());
  Text& own = texts[static_cast<size_t>(rank_)];
  std::memcpy(own.data(), mine.message().data(), std::min(mine.message().size(), own.size()));
  status = gather(kAgreeText, texts.front().data(), sizeof(Text), deadline, fcclRemoteError);
  if (!status.ok()) return mine.ok() ? status : mine;
  const auto lowest = first - codes.begin();
  if (lowest == rank_) return mine;
  const Text& text = texts[static_cast<size_t>(lowest)];
  const std::string sentence(text.data(), strnlen(text.data(), text.size()));
  return failure(static_cast<fcclResult_t>(*first), "rank {}: {}", lowest, sentence);
}

void Ring::abort() {
  // Release: whoever is woken by what follows sees the flag. The system calls order it too; TSan knows only this.
  aborted_.store(true, std::memory_order_release);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wakeUp_.get(), &one, sizeof one);  // fails only if readable already
  if (next_.valid()) ::shutdown(next_.get(), SHUT_RDWR);
  if (previous_.valid()) ::shutdown(previous_.get(), SHUT_RDWR);
}

// Acquire: pairs with the release in abort().
bool Ring::aborted() const { return aborted_.load(std::memory_order_acquire); }

Status Ring::abortedStatus() const { return failure(fcclInvalidUsage, "rank {} has aborted this communicator", rank_); }

Status Ring::gather(int operation, char* all, size_t bytes, const Deadline& deadline, fcclResult_t lateCode) {
  if (aborted()) return abortedStatus();
  if (!broken_.ok()) return broken_;
  if (ranks_ == 1) return {};
  Gather gather;
  gather.frame.operation = static_cast<uint8_t>(operation);
  gather.frame.sequence = ++sequence_;
  gather.frame.bytes = bytes;
  gather.all = all;
  gather.bytes = bytes;
  gather.blocks = static_cast<size_t>(ranks_ - 1);
  Status status = advance(gather, deadline, lateCode);
  // Our own abort shuts the connections down, which looks as if the neighbours had closed them.
  if (!status.ok() && aborted()) return abortedStatus();
  if (!status.ok()) {
    broken_ = status;
    passOn(gather, status);
  }
  return status;
}

Status Ring::advance(Gather& gather, Deadline deadline, fcclResult_t lateCode) {
  FCCL_TRY(parse(gather));  // the predecessor may have been ahead
  bool waitsForReason = false;
  while (!gather.sent() || !gather.received()) {
    bool progress = false;
    FCCL_TRY(receiveReady(gather, &progress));
    sendReady(gather, &progress);
    if (progress) continue;
    if (gather.successorGone) {
      if (gather.received()) return closedBy(successor());
      // A successor that failed before it closed has sent the reason round the ring, to arrive from the other side.
      if (!waitsForReason) deadline = deadline.earlier(Deadline(reasonPatience_));
      waitsForReason = true;
    }

    // A successor that has all its blocks may close; it is looked at only while it still needs some.
    const bool toSend = !gather.sent() && !gather.successorGone;
    const short sendEvents = static_cast<short>((gather.readyBytes() > 0 ? POLLOUT : 0) | POLLRDHUP);
    std::array<pollfd, 3> polls = {{{toSend ? next_.get() : -1, sendEvents, 0},
                                    {gather.received() ? -1 : previous_.get(), POLLIN, 0},
                                    {wakeUp_.get(), POLLIN, 0}}};
    FCCL_TRY(waitFor(polls, deadline));
    if (aborted()) return abortedStatus();
    if ((polls[0].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) gather.successorGone = true;
    if (!deadline.passed() || polls[0].revents != 0 || polls[1].revents != 0) continue;
    if (gather.successorGone) return closedBy(successor());
    if (gather.received()) {
      return failure(lateCode, "rank {} has taken no data from rank {} for {:.1f} s", successor(), rank_,
                     deadline.secondsPassed());
    }
    // Blocks arrive in the order of the ring, so the first that lacks is of a rank that has not called.
    return failure(lateCode, "rank {} has not arrived within {:.1f} s: rank {} waited for it in {} {} of {} bytes",
                   ownerOf(gather.receivedBlocks + 1), deadline.secondsPassed(), rank_,
                   operationName(gather.frame.operation), gather.frame.sequence, gather.bytes);
  }
  return {};
}

// Of the k-th block that this rank sends.
int Ring::ownerOf(size_t block) const {
  const auto ranks = static_cast<size_t>(ranks_);
  return static_cast<int>((static_cast<size_t>(rank_) + ranks - block) % ranks);
}

void Ring::sendReady(Gather& gather, bool* progress) {
  while (gather.readyBytes() > 0 && !gather.successorGone) {
    constexpr size_t kMostParts = 64;
    std::array<iovec, kMostParts> parts;
    size_t count = 0;
    size_t from = gather.sentBytes;
    const size_t end = from + gather.readyBytes();
    while (from < end && count < kMostParts) {
      const size_t offset = from % gather.unit();
      char* base = reinterpret_cast<char*>(&gather.frame) + offset;
      size_t bytes = sizeof gather.frame - std::min(offset, sizeof gather.frame);
      if (bytes == 0) {
        const auto owner = static_cast<size_t>(ownerOf(from / gather.unit()));
        base = gather.all + owner * gather.bytes + (offset - sizeof gather.frame);
        bytes = gather.unit() - offset;
      }
      parts[count++] = {base, bytes};
      from += bytes;
    }
    const ptrdiff_t sent = sendSome(next_, parts.data(), count);
    if (sent == 0) return;
    gather.successorGone = sent < 0;
    gather.sentBytes += static_cast<size_t>(std::max<ptrdiff_t>(sent, 0));
    *progress = true;
  }
}

Status Ring::receiveReady(Gather& gather, bool* progress) {
  while (!gather.received()) {
    if (begin_ > 0) {
      std::memmove(incoming_.data(), incoming_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    const ptrdiff_t got = receiveSome(previous_, incoming_.data() + end_, incoming_.size() - end_);
    if (got < 0) return closedBy(predecessor());
    if (got == 0) return {};
    end_ += static_cast<size_t>(got);
    *progress = true;
    FCCL_TRY(parse(gather));
  }
  return {};
}

// Moves what has been received into its place. Leaves less than a frame, a failure that is not complete, or what
// belongs to the next operation.
Status Ring::parse(Gather& gather) {
  while (!gather.received()) {
    if (!gather.inBlock) {
      RingFrame frame;
      if (end_ - begin_ < sizeof frame) return {};
      std::memcpy(&frame, incoming_.data() + begin_, sizeof frame);
      FCCL_TRY(checkFrame(gather, frame));
      if (frame.operation == kFailure) {
        if (end_ - begin_ < sizeof frame + frame.bytes) return {};
        return Status(static_cast<fcclResult_t>(frame.code),
                      std::string(incoming_.data() + begin_ + sizeof frame, frame.bytes));
      }
      begin_ += sizeof frame;
      gather.inBlock = true;
      gather.partBytes = 0;
    }
    const auto owner = static_cast<size_t>(ownerOf(gather.receivedBlocks + 1));
    const size_t bytes = std::min(end_ - begin_, gather.bytes - gather.partBytes);
    if (bytes > 0) {
      std::memcpy(gather.all + owner * gather.bytes + gather.partBytes, incoming_.data() + begin_, bytes);
    }
    begin_ += bytes;
    gather.partBytes += bytes;
    if (gather.partBytes < gather.bytes) return {};
    gather.inBlock = false;
    ++gather.receivedBlocks;
  }
  return {};
}

Status Ring::checkFrame(const Gather& gather, const RingFrame& frame) const {
  const bool known = frame.magic == kFrameMagic && frame.operation <= kAgreeText;
  const bool sane = frame.operation != kFailure || (frame.bytes <= kStatusText && frame.code != fcclSuccess);
  if (!known || !sane) return failure(fcclInternalError, "rank {} received garbage from rank {}", rank_, predecessor());
  if (frame.operation == kFailure) return {};
  const RingFrame& own = gather.frame;
  if (frame.operation == own.operation && frame.sequence == own.sequence && frame.bytes == own.bytes) return {};
  return failure(
      fcclInvalidUsage,
      "the ranks' calls do not fit: rank {} is in {} number {} of {} bytes, rank {} in {} number {} of {} bytes", rank_,
      operationName(own.operation), own.sequence, own.bytes, predecessor(), operationName(frame.operation),
      frame.sequence, frame.bytes);
}

// Ends the block that is half sent, since the successor counts on it, and sends the failure in place of the next.
void Ring::passOn(const Gather& gather, const Status& status) {
  std::string out;
  if (const size_t offset = gather.sentBytes % gather.unit(); offset != 0) {
    out.assign(reinterpret_cast<const char*>(&gather.frame), sizeof gather.frame);
    out.resize(gather.unit());
    out.erase(0, offset);
  }
  RingFrame frame;
  frame.operation = kFailure;
  frame.code = static_cast<uint8_t>(status.code());
  frame.sequence = gather.frame.sequence;
  frame.bytes = std::min(status.message().size(), kStatusText);
  out.append(reinterpret_cast<const char*>(&frame), sizeof frame);
  out.append(status.message(), 0, frame.bytes);
  // Where the successor is gone or stuck, it learns of the failure from the end of the connection.
  if (!sendAll(next_, out.data(), out.size(), Deadline(kPassOnPatience)).ok()) {
    FCCL_TRACE("rank {} could not tell rank {} why it failed", rank_, successor());
  }
}

}  // namespace fccl
