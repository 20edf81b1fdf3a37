// NCCL carries out the calls of one communicator in the order in which they were made, on whatever streams; FCCL's, and
// the two kinds among each other, have the order of their stream only. Here is the rest of it.
//
// A program may destroy a stream as soon as its call is enqueued, so the next call, on another stream, cannot ask the
// first one for anything: where the first ends is marked by an event right after it. That takes the host a moment (not
// timed), and the next kernel of that stream begins no earlier than the call has ended. It is paid by every call but
// - on the default stream, which is never destroyed and so is marked when it is left;
// - while its stream is captured: a graph's place in the order is the program's. What an engine replays pays nothing.
// To begin with marks at a program's second stream would not do: the last call on the first one would have none.
#pragma once

#include <cstdint>

#include "lib/shim/stream_events.h"

namespace fccl::shim {

// `Streams`: as StreamEvents.
template <class Streams>
class StreamOrderOf {
 public:
  explicit StreamOrderOf(int device) : streams_(device) {}

  // Before a call is enqueued on `stream`: it waits for what the call before has enqueued on another one.
  void before(void* stream) {
    if (!has_ || streams_.isCaptured(stream) || streams_.idOf(stream) == lastId_) return;
    if (Streams::isDefault(last_)) marked_ = !streams_.isCaptured(last_) && streams_.mark(last_);
    if (marked_) streams_.follow(stream);
  }
  // After it.
  void after(void* stream) {
    const bool later = Streams::isDefault(stream);
    if (!later && streams_.isCaptured(stream)) return;
    has_ = true;
    last_ = stream;
    lastId_ = streams_.idOf(stream);
    marked_ = !later && streams_.mark(stream);
  }

 private:
  bool has_ = false;
  void* last_ = nullptr;  // touched where it is the default stream only
  uint64_t lastId_ = 0;   // a new stream may have a destroyed one's handle
  bool marked_ = false;
  Streams streams_;
};

using StreamOrder = StreamOrderOf<StreamEvents>;

}  // namespace fccl::shim
