// What waits for each other runs side by side, each on a thread of its own: all of it, or nothing.
#pragma once

#include <cstddef>
#include <functional>

#include "base/status.h"

namespace fccl {

// Calls before(), then body(0) ... body(count - 1) at the same time, the last of them on the calling thread, and
// returns when all have returned. Where before() fails, no body is called, and its failure is returned. fcclSystemError
// where a thread cannot be started: then neither before() nor any body has been called. No exception may leave a body.
// `count` > 0.
Status runSideBySide(size_t count, const std::function<Status()>& before, const std::function<void(size_t)>& body);

// For tests: how many threads the system gives, set while no call runs.
size_t& mostThreads();

}  // namespace fccl
