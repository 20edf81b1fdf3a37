// The door of a listener where one is expected: others may knock, and are turned away or wait in silence.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "base/status.h"
#include "transport/socket.h"

namespace fccl {

class Gate {
 public:
  // The one expected is known by the first `bytes` bytes that it sends.
  Gate(const Listener& listener, size_t bytes, std::function<bool(const char*)> isExpected)
      : listener_(listener), bytes_(bytes), isExpected_(std::move(isExpected)) {}

  // Its connection. fcclRemoteError as soon as `watched`, if any, is closed from the other side; fcclSystemError at the
  // deadline.
  Result<Fd> accept(const Fd* watched, const Deadline& deadline);

 private:
  struct Guest {
    Fd fd;
    std::vector<char> said;
    size_t received = 0;
  };
  enum class Knock { kExpected, kNotYet, kOther };

  Status acceptAll();
  Knock hear(Guest& guest) const;

  const Listener& listener_;
  size_t bytes_;
  std::function<bool(const char*)> isExpected_;
  std::vector<Guest> guests_;
};

}  // namespace fccl
