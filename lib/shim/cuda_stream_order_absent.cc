// A build without the CUDA toolkit serves nothing itself, so there is nothing to be ordered.
#include "lib/shim/stream_order.h"

namespace fccl::shim {

StreamOrder::~StreamOrder() = default;
void StreamOrder::follow(void* stream) {
  has_ = true;
  last_ = stream;
}

}  // namespace fccl::shim
