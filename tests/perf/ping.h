// The one-way time of a flag between ranks 0 and 1: what tells the machine's state. Two cores that share an L3 cache
// take about 50 ns, others 200 and more; a virtual machine may change from one to the other within minutes.
#pragma once

#include <atomic>
#include <cstdint>

namespace fccl::perf {

class Ranks;

// In memory that all ranks share. Zeroed memory is a valid cell; the numbers only ever grow.
struct PingCell {
  alignas(128) std::atomic<uint64_t> ping{0};
  alignas(128) std::atomic<uint64_t> pong{0};
  alignas(128) std::atomic<uint64_t> finished{0};  // pings measured by rank 0
};

// Collective. Nanoseconds, the same value on every rank; NaN with one rank. Ranks over 1 sleep meanwhile.
double measurePing(Ranks& ranks);

}  // namespace fccl::perf
