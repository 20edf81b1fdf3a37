// NCCL carries out the calls of one communicator in the order in which they were made, on whatever streams; FCCL's, and
// the two kinds among each other, have the order of their stream only. Here is the rest of it.
#pragma once

namespace fccl::shim {

class StreamOrder {
 public:
  StreamOrder() = default;
  ~StreamOrder();  // NOLINT(performance-trivially-destructible): with CUDA it gives back the event
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  // Before a call is enqueued on `stream`: it waits for what the call before has enqueued on another one. Not where one
  // of the two is being captured: a graph's place in the order is the program's.
  void follow(void* stream);
  // Whether the call before was on another stream.
  bool changes(void* stream) const { return has_ && last_ != stream; }

 private:
  bool has_ = false;
  void* last_ = nullptr;
  void* event_ = nullptr;
};

}  // namespace fccl::shim
