// Counts beyond 31 bits, where an offset or a length kept in an int would go negative, outputs beyond the caches, and
// large fused calls by the thousand.
#include <sys/mman.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/fused_case.h"
#include "tests/support/test_data.h"
#include "tests/support/thread_ranks.h"

using namespace fccl::test;

namespace {

size_t availableBytes() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    if (line.starts_with("MemAvailable:")) return std::stoul(line.substr(13)) * 1024;
  }
  return 0;
}

}  // namespace

TEST_CASE("stress: 2^31 + 17 elements of uint8 in place", "[stress]") {
  constexpr size_t kCount = (size_t{1} << 31) + 17;
  if (slowness() > 1) FCCL_SKIP("a sanitizer's shadow memory for 4 GiB is more than this test is worth");
  if (availableBytes() < 3 * kCount) FCCL_SKIP("less than 6 GiB of memory are free");
  RankGroup group(2);
  group.run(
      "large all-reduce",
      [](Rank& rank) {
        void* mapping = mmap(nullptr, kCount, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapping == MAP_FAILED) return rank.expect(false, "mmap");
        madvise(mapping, kCount, MADV_HUGEPAGE);  // a million page faults less
        auto* values = static_cast<uint8_t*>(mapping);
        // Untouched pages stay zero; marks around every power of two and at the end.
        for (size_t at = 1; at < kCount; at *= 2) values[at] = values[at - 1] = static_cast<uint8_t>(rank.rank + 3);
        for (size_t at = kCount - 17; at < kCount; ++at)
          values[at] = static_cast<uint8_t>(at * 7 + static_cast<size_t>(rank.rank));
        rank.ok(fcclAllReduce(values, values, kCount, fcclUint8, fcclSum, rank.comm, nullptr), "all-reduce");
        for (size_t at = 4; at < kCount - 17; at *= 2) {
          rank.expect(values[at] == 7 && values[at - 1] == 7 && values[at + 1] == 0, "wrong around a power of two");
        }
        for (size_t at = kCount - 17; at < kCount; ++at) {
          rank.expect(values[at] == static_cast<uint8_t>(2 * at * 7 + 1), "wrong at the end");
        }
        munmap(mapping, kCount);
      },
      Seconds(200));
}

TEST_CASE("stress: outputs larger than the caches, aligned and not", "[stress]") {
  constexpr size_t kCount = 24'000'000;  // 96 MB of fp32
  if (availableBytes() < 10 * kCount * sizeof(float)) FCCL_SKIP("too little memory is free");
  RankGroup group(2);
  for (const size_t shift : {size_t{0}, size_t{1}}) {
    group.run("beyond the caches", [&](Rank& rank) {
      std::vector<float> input(kCount);
      std::vector<float> block(kCount + 64);
      float* output = block.data();
      while (reinterpret_cast<uintptr_t>(output) % 64 != 0) ++output;
      output += shift;
      for (size_t i = 0; i < kCount; ++i)
        input[i] = static_cast<float>(static_cast<int>(i * 2654435761u >> 16 & 0xfff) + rank.rank);
      rank.ok(fcclAllReduce(input.data(), output, kCount, fcclFloat32, fcclSum, rank.comm, nullptr), "all-reduce");
      for (size_t i = 0; i < kCount; ++i) {
        if (output[i] == 2 * (input[i] - static_cast<float>(rank.rank)) + 1) continue;
        return rank.expect(false, "wrong element " + std::to_string(i));
      }
    });
  }
}

namespace {

// Calls back to back with changing data, on shapes that go through every slot many times. Every byte of every output of
// every call is compared: with the reference in the first calls, then with what was right there.
void largeCalls(int64_t tokens, int calls, Seconds limit) {
  constexpr int kProblems = 3;
  FusedCase asked;
  asked.pattern = fcclPatternResidualRmsNormOutQuantNvfp4;
  asked.tokens = tokens;
  asked.hidden = 8192;
  std::vector<std::unique_ptr<FusedProblem>> problems;
  for (int i = 0; i < kProblems; ++i) {
    asked.seed = static_cast<uint64_t>(i) + 1;
    problems.push_back(std::make_unique<FusedProblem>(asked, 2));
  }
  RankGroup group(2);
  std::mutex checking;  // a FusedProblem is checked by one thread at a time
  group.run(
      "large fused calls",
      [&](Rank& rank) {
        std::vector<std::unique_ptr<FusedBuffers>> own;
        std::vector<FusedOutputs> right(kProblems);
        for (const auto& problem : problems) {
          own.push_back(std::make_unique<FusedBuffers>(*problem, rank.rank, asked.pattern));
        }
        for (int call = 0; call < calls; ++call) {
          const auto which = static_cast<size_t>(call % kProblems);
          fcclFusedArgs_t& args = own[which]->args;
          FusedOutputs& expected = right[which];
          args.strategy = call / kProblems % 2 == 0 ? fcclStrategyOneshot : fcclStrategyTwoshot;
          const std::pair<void*, const Bytes*> outputs[] = {{args.residualOut, &expected.residual},
                                                            {args.normOut, &expected.norm},
                                                            {args.quantOut, &expected.quant},
                                                            {args.scaleOut, &expected.scales}};
          for (const auto& [data, bytes] : outputs) std::memset(data, call, bytes->size());
          if (!rank.ok(fcclAllReduceFused(&args, rank.comm, nullptr), "large call")) return;
          if (call < kProblems) {
            expected = own[which]->outputs();
            const std::lock_guard lock(checking);
            const std::string wrong = problems[which]->check(asked.pattern, expected, expected.norm);
            if (!wrong.empty()) return rank.expect(false, wrong);
          }
          for (const auto& [data, bytes] : outputs) {
            if (std::memcmp(data, bytes->data(), bytes->size()) == 0) continue;
            return rank.expect(false, "call " + std::to_string(call) + " differs from the first with this data");
          }
        }
        for (const auto& buffers : own) {
          const std::string damage = buffers->intact();
          rank.expect(damage.empty(), damage);
        }
      },
      limit);
}

}  // namespace

TEST_CASE("stress: large fused calls, every byte of every call", "[stress]") {
  largeCalls(100, slowness() > 1 ? 8 : 40, Seconds(100));
}

TEST_CASE("stress: ten thousand large fused calls, every byte of every call", "[.soak]") {
  largeCalls(512, 10'000, Seconds(3000));
}
