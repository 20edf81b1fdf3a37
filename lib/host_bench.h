#pragma once

#include <memory>

#include "lib/bench.h"

namespace fccl {

std::unique_ptr<Bench> makeHostBench(size_t cacheBytes);

}  // namespace fccl
