// A build without the CUDA toolkit serves nothing itself, so there is nothing to be ordered.
#include "lib/shim/stream_events.h"

namespace fccl::shim {

StreamEvents::~StreamEvents() = default;
bool StreamEvents::isDefault(const void*) { return true; }
uint64_t StreamEvents::idOf(void*) const { return 0; }
bool StreamEvents::isCaptured(void*) const { return true; }
bool StreamEvents::mark(void*) { return false; }
void StreamEvents::follow(void*) {}

}  // namespace fccl::shim
