// fcclAllReduceFused on ranks that are threads: every pattern, type, strategy, shape class, compared byte by byte.
#include <chrono>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/fused_case.h"
#include "tests/support/number_formats.h"
#include "tests/support/suite_device.h"
#include "tests/support/tolerance.h"

using namespace fccl::test;

namespace {

constexpr int kSlotBytes = 4096;
constexpr fcclDataType_t kTypes[] = {fcclFloat32, fcclFloat16, fcclBfloat16};
constexpr fcclStrategy_t kStrategies[] = {fcclStrategyAuto, fcclStrategyOneshot, fcclStrategyTwoshot,
                                          fcclStrategyMinLatency};
constexpr int64_t kTokens[] = {0, 1, 2, 3, 7, 13, 64, 129};
constexpr int64_t kHidden[] = {1, 2, 3, 7, 8, 15, 64, 96, 100, 511, 2880, 2881, 7168};
constexpr fcclScaleLayout_t kLayouts[] = {fcclScaleSwizzled128x4, fcclScaleSwizzled8x4, fcclScaleLinear};

// NVFP4 wants whole blocks of 16.
int64_t legalHidden(fcclFusionPattern_t pattern, int64_t hidden) {
  return traits(pattern).quant == Quant::kNvfp4 ? (hidden + 15) / 16 * 16 : hidden;
}

// The n-th combination of everything that a case can vary, drawn so that neighbours in n differ in all of it.
FusedCase draw(fcclFusionPattern_t pattern, fcclDataType_t dtype, uint64_t n) {
  const auto pick = [&](uint64_t salt, size_t size) { return hash(1000 + salt, n) % size; };
  FusedCase asked;
  asked.pattern = pattern;
  asked.dtype = dtype;
  asked.hidden = legalHidden(pattern, kHidden[pick(1, std::size(kHidden))]);
  asked.tokens = kTokens[pick(2, std::size(kTokens))];
  asked.strategy = kStrategies[n % std::size(kStrategies)];
  asked.layout = kLayouts[pick(3, std::size(kLayouts))];
  asked.weightBias = static_cast<float>(pick(4, 2));
  asked.fp32Weight = pick(5, 2) == 0;
  asked.reducedOut = pick(6, 2) == 0;
  asked.eps = pick(7, 3) == 0 ? 1e-6f : 1e-5f;
  asked.data = pick(8, 4) == 0 ? DataKind::kCancellation : pick(8, 4) == 1 ? DataKind::kSpecial : DataKind::kPlain;
  asked.guard = pick(9, 4) == 0 ? GuardedBuffer::Guard::kBefore : GuardedBuffer::Guard::kAfter;
  asked.seed = n + 1;
  return asked;
}

void runDrawnCases(int ranks, uint64_t casesEach, size_t most) {
  RankGroup group(ranks, suiteConfig(kSlotBytes));
  uint64_t n = static_cast<uint64_t>(ranks) * 1000;
  for (const fcclFusionPattern_t pattern : allPatterns()) {
    for (const fcclDataType_t dtype : kTypes) {
      for (uint64_t i = 0; i < casesEach; ++i) {
        FusedCase asked = draw(pattern, dtype, n++);
        while (asked.count() * static_cast<size_t>(ranks) > most) asked.tokens = (asked.tokens + 1) / 2 - 1;
        runFused(group, asked);
      }
    }
  }
}

}  // namespace

TEST_CASE("fused: 2 ranks", "[fused]") {
  FCCL_NEED_SUITE_DEVICE();
  runDrawnCases(2, 16, 200'000);
}
TEST_CASE("fused: 3 ranks", "[fused]") {
  FCCL_NEED_SUITE_DEVICE();
  runDrawnCases(3, 12, 150'000);
}
TEST_CASE("fused: 4 ranks", "[fused]") {
  FCCL_NEED_SUITE_DEVICE();
  runDrawnCases(4, 12, 150'000);
}
TEST_CASE("fused: 5 ranks", "[fused]") {
  FCCL_NEED_SUITE_DEVICE();
  runDrawnCases(5, 8, 100'000);
}
TEST_CASE("fused: 8 ranks", "[fused]") {
  FCCL_NEED_SUITE_DEVICE();
  runDrawnCases(8, 8, 100'000);
}

TEST_CASE("fused: a single rank computes the same epilogue", "[fused]") {
  FCCL_NEED_SUITE_DEVICE();
  runDrawnCases(1, 12, 150'000);
}

TEST_CASE("fused: every shape class in every strategy", "[fused]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(3, suiteConfig(kSlotBytes));
  for (const fcclStrategy_t strategy : kStrategies) {
    for (const int64_t hidden : kHidden) {
      for (const int64_t tokens : {1, 2, 7, 13}) {
        if (tokens * hidden > 30'000) continue;
        FusedCase asked;
        asked.strategy = strategy;
        asked.hidden = hidden;
        asked.tokens = tokens;
        asked.dtype = kTypes[static_cast<size_t>(hidden + tokens) % 3];
        asked.seed = static_cast<uint64_t>(hidden);
        runFused(group, asked);
      }
    }
  }
}

TEST_CASE("fused: wide rows, larger than a slot", "[fused]") {
  FCCL_NEED_SUITE_DEVICE();
  for (const int slotBytes : {kSlotBytes, 0}) {
    RankGroup group(2, suiteConfig(slotBytes));
    for (const fcclFusionPattern_t pattern : allPatterns()) {
      FusedCase asked;
      asked.pattern = pattern;
      asked.hidden = 18432;
      asked.tokens = 2;
      asked.dtype = pattern % 2 == 0 ? fcclBfloat16 : fcclFloat32;
      asked.strategy = kStrategies[static_cast<size_t>(pattern) % 4];
      runFused(group, asked);
    }
  }
}

TEST_CASE("fused: two-shot with fewer rows than ranks, and rows that ranks do not divide", "[fused]") {
  FCCL_NEED_SUITE_DEVICE();
  for (const int ranks : {2, 3, 5, 6, 7, 8}) {
    RankGroup group(ranks, suiteConfig(kSlotBytes));
    for (int64_t tokens = 1; tokens <= ranks + 1; ++tokens) {
      FusedCase asked;
      asked.strategy = fcclStrategyTwoshot;
      asked.pattern = allPatterns()[static_cast<size_t>(tokens) % 7];
      asked.tokens = tokens;
      asked.hidden = tokens % 2 == 0 ? 2880 : 160;
      runFused(group, asked);
    }
  }
}

TEST_CASE("fused: smallest workspace, large message", "[fused]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(2, suiteConfig(kSlotBytes));
  for (const fcclStrategy_t strategy : {fcclStrategyAuto, fcclStrategyOneshot, fcclStrategyTwoshot}) {
    FusedCase asked;
    asked.tokens = 256;
    asked.hidden = 8192;
    asked.strategy = strategy;
    runFused(group, asked);
  }
}

TEST_CASE("fused: 0 tokens take NULL pointers and disturb nothing", "[fused]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(4, suiteConfig());
  for (int round = 0; round < 3; ++round) {
    for (const fcclFusionPattern_t pattern : allPatterns()) {
      group.run("0 tokens", [&](Rank& rank) {
        fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
        args.pattern = pattern;
        args.hidden = 64;
        rank.ok(fcclAllReduceFused(&args, rank.comm, nullptr), "0 tokens with NULL pointers");
      });
    }
    FusedCase asked;
    asked.tokens = 5;
    asked.seed = static_cast<uint64_t>(round);
    runFused(group, asked);
  }
}

namespace {

// Each round another type in the same staging areas, one rank late.
void oneTypeAfterTheOther(uint64_t rounds) {
  RankGroup group(4, suiteConfig(kSlotBytes));
  const fcclDataType_t order[] = {fcclFloat32, fcclBfloat16, fcclFloat16, fcclFloat32};
  const int64_t tokens[] = {1, 2, 3, 7, 64, 129};
  for (uint64_t round = 0; round < rounds; ++round) {
    FusedCase asked;
    asked.dtype = order[round % 4];
    asked.tokens = tokens[hash(5, round) % 6];
    asked.hidden = 48;
    asked.pattern = allPatterns()[hash(6, round) % 7];
    asked.data = round % 3 == 0 ? DataKind::kSpecial : DataKind::kPlain;
    asked.seed = round;
    runFused(group, asked, [&](Rank& rank, FusedBuffers& own) {
      if (hash(7, round) % 4 == static_cast<uint64_t>(rank.rank)) {
        std::this_thread::sleep_for(std::chrono::microseconds(hash(8, round) % 300));
      }
      return suiteDevice().call(rank, own);
    });
  }
}

}  // namespace

TEST_CASE("fused: one workspace, one type after the other", "[fused]") {
  FCCL_NEED_SUITE_DEVICE();
  oneTypeAfterTheOther(120);
}

TEST_CASE("fused: a thousand changes of type in one workspace", "[.soak]") {
  FCCL_NEED_SUITE_DEVICE();
  oneTypeAfterTheOther(1000);
}

TEST_CASE("fused: zeros of either sign, and values that cancel to zero", "[fused]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(4, suiteConfig());
  for (const fcclFusionPattern_t pattern : allPatterns()) {
    for (const int kind : {0, 1, 2, 3}) {
      INFO("kind " << kind);
      FusedCase asked;
      asked.pattern = pattern;
      asked.tokens = 1;
      asked.hidden = 2880;
      asked.strategy = kStrategies[(kind + pattern) % 4];
      FusedProblem problem(asked, 4);
      for (size_t i = 0; i < asked.count(); ++i) {
        store(asked.dtype, problem.residual.data(), i, i % 2 == 0 ? 0.0 : -0.0);
        const double x = inputValue(DataKind::kPlain, asked.dtype, 9, 0, 4, 0, i);
        const double values[4][4] = {
            {-0.0, -0.0, -0.0, -0.0}, {0.0, 0.0, 0.0, 0.0}, {-0.0, 0.0, -0.0, 0.0}, {x, -x, x, -x}};
        for (size_t r = 0; r < 4; ++r) store(asked.dtype, problem.inputs[r].data(), i, values[kind][r]);
      }
      const FusedOutputs outputs = runFused(group, problem);
      for (size_t i = 0; i < asked.count() && !outputs.norm.empty(); ++i) {
        REQUIRE(load(asked.dtype, outputs.norm.data(), i) == 0);
      }
    }
  }
}

TEST_CASE("fused: fp32 weights beside 16-bit data", "[fused]") {
  FCCL_NEED_SUITE_DEVICE();
  // 1.0f has a zero low half: read as 16-bit numbers, every other weight would be 0.
  for (const fcclDataType_t dtype : {fcclBfloat16, fcclFloat16}) {
    for (const fcclStrategy_t strategy : kStrategies) {
      RankGroup group(2, suiteConfig(kSlotBytes));
      FusedCase asked;
      asked.dtype = dtype;
      asked.strategy = strategy;
      asked.fp32Weight = true;
      asked.tokens = 3;
      asked.hidden = 96;
      asked.pattern = fcclPatternResidualRmsNormQuantFp8;
      FusedProblem problem(asked, 2);
      for (size_t i = 0; i < 96; ++i) store(fcclFloat32, problem.weight.data(), i, 1.0);
      runFused(group, problem);
    }
  }
}

TEST_CASE("fused: quantized codes against the float64 norm", "[fused]") {
  FCCL_NEED_SUITE_DEVICE();
  // The other tests start from the library's own n; here the codes may only differ where n was rounded the other way.
  RankGroup group(2, suiteConfig());
  for (const fcclDataType_t dtype : kTypes) {
    FusedCase asked;
    asked.pattern = fcclPatternResidualRmsNormOutQuantFp8;
    asked.dtype = dtype;
    asked.tokens = 64;
    asked.hidden = 2880;
    FusedProblem problem(asked, 2);
    const FusedOutputs outputs = runFused(group, problem);
    const size_t rowBytes = 2880 * dtypeBytes(dtype);
    size_t off = 0;
    for (size_t row = 0; row < 64; ++row) {
      const std::vector<double> norm = referenceNorm(dtype, outputs.residual.data() + row * rowBytes,
                                                     problem.weight.data(), dtype, 2880, 0, asked.eps);
      Bytes rounded(rowBytes);
      for (size_t i = 0; i < 2880; ++i) store(dtype, rounded.data(), i, norm[i]);
      const Bytes codes = referenceFp8(dtype, rounded.data(), 2880, asked.fp8DequantScale);
      for (size_t i = 0; i < 2880; ++i) off += codes[i] != outputs.quant[row * 2880 + i];
    }
    CHECK(static_cast<double>(off) < kQuantCodesOff * 64 * 2880);
  }
}
