// What the order of calls needs of CUDA's streams: one event that is recorded again and again.
#pragma once

#include <cstdint>

namespace fccl::shim {

class StreamEvents {
 public:
  // The GPU of the streams.
  explicit StreamEvents(int device) : device_(device) {}
  ~StreamEvents();  // NOLINT(performance-trivially-destructible): with CUDA it gives back the event
  StreamEvents(const StreamEvents&) = delete;
  StreamEvents& operator=(const StreamEvents&) = delete;

  // The GPU's default stream, which is there as long as the GPU.
  static bool isDefault(const void* stream);
  // Of the stream itself: not of its handle, which may be used again, or be a name for another stream in every thread.
  // Not while it is captured: CUDA ends a capture for that.
  uint64_t idOf(void* stream) const;
  bool isCaptured(void* stream) const;
  // The event has happened when all that is enqueued on `stream` now has ended. False, and a warning, where that fails.
  bool mark(void* stream);
  // What is enqueued on `stream` from now on begins after the event.
  void follow(void* stream);

 private:
  const int device_;
  void* event_ = nullptr;
};

}  // namespace fccl::shim
