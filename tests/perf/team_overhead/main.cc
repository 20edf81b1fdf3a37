// fccl-team-overhead: what the template over Team costs. Times the library's kernels, which are instantiations of
// kernels/oneshot.h, against hand-written loops of the same protocol, with two ranks as threads bound to a core each,
// the input rewritten before every call, both in turn. docs/performance.md has the figures.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "tests/perf/buffers.h"
#include "tests/perf/machine.h"
#include "tests/perf/ranks.h"
#include "tests/perf/team_overhead/hand_written.h"
#include "tests/perf/timing.h"

namespace fccl::perf {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 41;
constexpr double kRoundUs = 4000;
constexpr double kGoal = 1.06;
constexpr size_t kSlotBytes = 256 << 10;  // as the library's default

struct OverheadCase {
  const char* name;
  int64_t tokens;  // 0: plain fp32
  int64_t cols;
  host::Wire wire;
  bool streamed;
  host::Kernel HandWritten::*hand;
};

constexpr OverheadCase kCases[] = {
    {"plain fp32 16 KiB, Lamport", 0, 4096, host::Wire::kLamport, false, &HandWritten::plainLamport},
    {"plain fp32 16 KiB, flags", 0, 4096, host::Wire::kFlags, false, &HandWritten::plainFlags},
    {"plain fp32 16 KiB, flags, streamed", 0, 4096, host::Wire::kFlags, true, &HandWritten::plainStreamed},
    {"fused bf16 1 x 8192, Lamport", 1, 8192, host::Wire::kLamport, false, &HandWritten::fusedLamport},
    {"fused bf16 1 x 8192, flags", 1, 8192, host::Wire::kFlags, false, &HandWritten::fusedFlags},
    {"fused bf16 1 x 8192, flags, streamed", 1, 8192, host::Wire::kFlags, true, &HandWritten::fusedStreamed},
    {"fused bf16 64 x 8192, Lamport", 64, 8192, host::Wire::kLamport, false, &HandWritten::fusedLamport},
    {"fused bf16 64 x 8192, flags", 64, 8192, host::Wire::kFlags, false, &HandWritten::fusedFlags},
    {"fused bf16 64 x 8192, flags, streamed", 64, 8192, host::Wire::kFlags, true, &HandWritten::fusedStreamed},
};

// The symmetric memory of two ranks, as lib/ lays it out.
class Memory {
 public:
  Memory() : layout_(host::makeLayout(2, kSlotBytes)) {
    for (auto& block : blocks_) {
      block.reset(static_cast<char*>(std::aligned_alloc(4096, layout_.totalBytes())));
      if (block == nullptr) throw std::bad_alloc();
      std::memset(block.get(), 0, layout_.totalBytes());
    }
  }
  // The calling thread arms its own part; a barrier must follow.
  host::World world(int rank, int64_t cols) const {
    host::World world;
    world.rank = rank;
    world.ranks = 2;
    world.layout = layout_;
    for (const auto& block : blocks_) world.memory.push_back(block.get());
    world.rowScratch.resize(static_cast<size_t>(cols) * 2 + 64);
    host::prepareMemory(world, 0);
    return world;
  }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  host::MemoryLayout layout_;
  std::unique_ptr<char, Free> blocks_[2];
};

// One of the two implementations with its own buffers.
struct Lane {
  host::Kernel kernel;
  std::unique_ptr<Buffers> buffers;
  host::Call call;
  uint64_t calls = 0;
};

Lane makeLane(const OverheadCase& c, host::Kernel kernel) {
  Case shape;
  shape.dtype = c.tokens > 0 ? fcclBfloat16 : fcclFloat32;
  shape.pattern = c.tokens > 0 ? fcclPatternResidualRmsNorm : fcclPatternAllReduce;
  shape.tokens = c.tokens > 0 ? c.tokens : 1;
  shape.hidden = c.cols;
  Lane lane{kernel, std::make_unique<Buffers>(shape, false, MemoryKind::kPlain, nullptr, 0), {}};
  lane.call.dtype = shape.dtype;
  lane.call.shape.colsPerChunk = c.cols;
  lane.call.shape.streamStaging = c.streamed;
  lane.call.shape.streamOutput = c.streamed && c.tokens > 0;  // as ONESHOT plans it
  RowArgs& rows = lane.call.rows;
  rows.input = lane.buffers->input;
  rows.rows = shape.tokens;
  rows.cols = c.cols;
  if (c.tokens > 0) {
    rows.residual = lane.buffers->residual;
    rows.residualOut = lane.buffers->residualOut;
    rows.weight = lane.buffers->weight;
    rows.normOut = lane.buffers->normOut;
    rows.eps = 1e-5f;
  } else {
    rows.reducedOut = lane.buffers->output;
  }
  return lane;
}

class Measurement {
 public:
  Measurement(Ranks& ranks, const OverheadCase& c, host::World& world)
      : ranks_(ranks),
        world_(world),
        producer_(c.tokens > 0 ? fcclBfloat16 : fcclFloat32, fcclSum, ranks.rank()),
        lanes_{makeLane(c, host::findKernel(host::Simd::kAvx512, host::Protocol::kOneshot, c.wire,
                                            c.tokens > 0 ? fcclBfloat16 : fcclFloat32, fcclSum, c.tokens > 0, 2)),
               makeLane(c, handWritten()->*c.hand)} {}

  void run(const OverheadCase& c) {
    for (Lane& lane : lanes_) once(lane);
    requireSameBits(c);
    int calls = 1;
    while (calls < 4096 && timeCalls(lanes_[0], calls) * calls < kRoundUs) calls *= 2;
    std::vector<double> team;
    std::vector<double> hand;
    std::vector<double> ratios;
    for (int round = 0; round < kRounds; round++) {
      double us[2];
      for (int i = 0; i < 2; i++) us[(i + round) % 2] = timeCalls(lanes_[(i + round) % 2], calls);
      team.push_back(us[0]);
      hand.push_back(us[1]);
      ratios.push_back(us[0] / us[1]);
    }
    if (ranks_.rank() != 0) return;
    const double ratio = median(ratios);
    fmt::print("{:<38} {:>10.2f} {:>13.2f} {:>7.3f}  {}\n", c.name, median(team), median(hand), ratio,
               ratio <= kGoal ? "within 6 %" : "MORE than 6 %");
    std::fflush(stdout);
  }

 private:
  void once(Lane& lane) {
    producer_.produce(const_cast<void*>(lane.call.rows.input),
                      static_cast<size_t>(lane.call.rows.rows * lane.call.rows.cols), lane.calls++);
    lane.kernel(world_, lane.call);
  }

  // Of the slower rank, per call.
  double timeCalls(Lane& lane, int calls) {
    once(lane);
    ranks_.barrier();
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < calls; i++) once(lane);
    double us = std::chrono::duration<double, std::micro>(Clock::now() - start).count() / calls;
    ranks_.maximum(std::span<double>(&us, 1));
    return us;
  }

  void requireSameBits(const OverheadCase& c) const {
    const auto same = [&](const void* a, const void* b) {
      const auto bytes = static_cast<size_t>(lanes_[0].call.rows.rows * c.cols) * (c.tokens > 0 ? 2 : 4);
      return a == nullptr || std::memcmp(a, b, bytes) == 0;
    };
    const RowArgs& a = lanes_[0].call.rows;
    const RowArgs& b = lanes_[1].call.rows;
    if (same(a.reducedOut, b.reducedOut) && same(a.residualOut, b.residualOut) && same(a.normOut, b.normOut)) return;
    throw std::runtime_error(fmt::format("{}: the two give different bits", c.name));
  }

  Ranks& ranks_;
  host::World& world_;
  const Producer producer_;
  Lane lanes_[2];
};

}  // namespace
}  // namespace fccl::perf

int main() {
  using namespace fccl::perf;
  if (handWritten() == nullptr) {
    fmt::print("SKIPPED: the hand-written loops need AVX-512 with BF16.\n");
    return 4;
  }
  const Memory memory;
  runAsThreads(2, [&](Ranks& ranks) {
    pinToCore(ranks.rank());
    fccl::host::World world = memory.world(ranks.rank(), 8192);
    ranks.barrier();
    PingPair ping;
    ping.beforeNs = measurePing(ranks);
    if (ranks.rank() == 0) {
      fmt::print("{:<38} {:>10} {:>13} {:>7}\n", "case", "team (us)", "by hand (us)", "ratio");
    }
    for (const OverheadCase& c : kCases) Measurement(ranks, c, world).run(c);
    ping.afterNs = measurePing(ranks);
    if (ranks.rank() == 0) fmt::print("state: {}\n", ping.text());
  });
  return 0;
}
