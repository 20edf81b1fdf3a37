// What stands in slots from long ago must not be taken for data when the sequence numbers have come round.
#include <fmt/format.h>

#include <vector>

#include "lib/testing.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"
#include "tests/support/thread_ranks.h"

using namespace fccl::test;

namespace {

// An all-reduce of `count` floats whose sum is exact, compared element by element.
void reduceExactly(const Rank& rank, size_t count, uint64_t seed) {
  const auto input = [&](int r, size_t i) {
    return static_cast<float>(static_cast<int64_t>(hash(seed * 131 + static_cast<uint64_t>(r), i) % 2001) - 1000);
  };
  std::vector<float> own(count);
  std::vector<float> sum(count);
  for (size_t i = 0; i < count; ++i) own[i] = input(rank.rank, i);
  if (!rank.ok(fcclAllReduce(own.data(), sum.data(), count, fcclFloat32, fcclSum, rank.comm, nullptr), "call")) return;
  for (size_t i = 0; i < count; ++i) {
    float want = 0;
    for (int r = 0; r < rank.ranks; ++r) want += input(r, i);
    if (sum[i] == want) continue;
    return rank.expect(false, fmt::format("element {} of {} is {} and not {}", i, count, sum[i], want));
  }
}

}  // namespace

TEST_CASE("stress: what slots held 2^32 and 2^31 chunks ago is not taken for data", "[stress]") {
  constexpr size_t kLarge = 30'000;  // every slot of every ring, several times
  for (const fcclStrategy_t strategy : {fcclStrategyOneshot, fcclStrategyTwoshot}) {
    for (const int wire : {0, 1}) {
      for (const uint32_t later : {0u, 1u << 31}) {
        fcclConfig_t config = testConfig(4096);
        config.strategy = strategy;
        RankGroup group(3, config);
        std::vector<fccl::host::TestHooks> hooks(3);
        for (int rank = 0; rank < 3; ++rank) {
          hooks[static_cast<size_t>(rank)].forceWire = true;
          hooks[static_cast<size_t>(rank)].wire = wire;
          fccl::testing::worldOf(group.comm(rank)).hooks = &hooks[static_cast<size_t>(rank)];
        }
        const fccl::host::World& world = fccl::testing::worldOf(group.comm(0));
        const uint32_t* const sequence = wire == 0 ? world.lamportSequence : world.stagedSequence;
        const uint32_t first = sequence[fccl::host::kReduce];
        for (uint64_t round = 0; round < 3; ++round) {
          INFO(strategyName(strategy) << ", wire " << wire << ", round " << round);
          group.run("large, then small", [&](Rank& rank) {
            reduceExactly(rank, kLarge, round * 10);
            for (uint64_t i = 1; i < 7; ++i) reduceExactly(rank, 1 + 37 * i, round * 10 + i);
          });
          REQUIRE(sequence[fccl::host::kReduce] - first >= 8);  // the ring has been used up
          // No rank is in a call: now all numbers are what they were before the large call, 2^32 or 2^31 chunks later.
          // The slots stay as they are.
          for (int rank = 0; rank < 3; ++rank) {
            fccl::host::prepareControl(fccl::testing::worldOf(group.comm(rank)), first + later);
          }
        }
      }
    }
  }
}
