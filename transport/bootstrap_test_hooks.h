// What tests change in a bootstrap. Nothing else uses it.
#pragma once

#include <sys/socket.h>

#include <functional>

namespace fccl {

enum class BootstrapStep { kJoin, kWait /* for rank 0's call */, kRingConnect, kRingAccept, kRingCheck };

struct BootstrapTestHooks {
  int family = AF_UNSPEC;                                    // AF_INET or AF_INET6: listen on that one only
  std::function<void(int rank, BootstrapStep step)> before;  // may be empty
};

}  // namespace fccl
