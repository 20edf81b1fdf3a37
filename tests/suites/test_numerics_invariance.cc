// The promise on numerics: all ranks hold the same bits, and a row's bits depend on nothing but the row and the ranks'
// data: not on the other rows, the number of tokens, the strategy, the slots or the alignment.
#include <fmt/format.h>

#include <cstring>
#include <optional>

#include "tests/support/catch.h"
#include "tests/support/fused_case.h"
#include "tests/support/suite_device.h"

using namespace fccl::test;

namespace {

constexpr fcclStrategy_t kStrategies[] = {fcclStrategyAuto, fcclStrategyOneshot, fcclStrategyTwoshot,
                                          fcclStrategyMinLatency};

// One row's share of every output.
struct RowBytes {
  Bytes residual;
  Bytes norm;
  Bytes quant;
  Bytes scales;
  bool operator==(const RowBytes&) const = default;
};

Bytes slice(const Bytes& all, size_t row, size_t rowBytes) {
  if (all.empty()) return {};
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(row * rowBytes);
  return Bytes(first, first + static_cast<std::ptrdiff_t>(rowBytes));
}

RowBytes rowOf(const FusedCase& asked, const FusedOutputs& outputs, size_t row) {
  const auto hidden = static_cast<size_t>(asked.hidden);
  const size_t rowBytes = hidden * dtypeBytes(asked.dtype);
  const bool nvfp4 = traits(asked.pattern).quant == Quant::kNvfp4;
  RowBytes bytes{slice(outputs.residual, row, rowBytes),
                 slice(outputs.norm, row, rowBytes),
                 slice(outputs.quant, row, nvfp4 ? hidden / 2 : hidden),
                 {}};
  for (size_t block = 0; nvfp4 && block < hidden / 16; ++block) {
    bytes.scales.push_back(outputs.scales[scaleOffset(static_cast<int64_t>(row), static_cast<int64_t>(block),
                                                      asked.hidden, asked.layout)]);
  }
  return bytes;
}

// A problem of `tokens` rows in which row `at` is the given row of `source`, the others differ with `seed`.
FusedProblem withRow(FusedCase asked, int64_t tokens, size_t at, FusedProblem& source, size_t sourceRow,
                     uint64_t seed) {
  asked.tokens = tokens;
  asked.seed = seed;
  FusedProblem problem(asked, source.ranks());
  const size_t rowBytes = static_cast<size_t>(asked.hidden) * dtypeBytes(asked.dtype);
  for (size_t rank = 0; rank < problem.inputs.size(); ++rank) {
    std::memcpy(&problem.inputs[rank][at * rowBytes], &source.inputs[rank][sourceRow * rowBytes], rowBytes);
  }
  std::memcpy(&problem.residual[at * rowBytes], &source.residual[sourceRow * rowBytes], rowBytes);
  problem.weight = source.weight;
  return problem;
}

void rowDoesNotDependOnBatch(const FusedCase& asked, int ranks, const std::vector<int64_t>& batches) {
  FusedCase one = asked;
  one.tokens = 1;
  FusedProblem source(one, ranks);
  std::optional<RowBytes> expected;
  for (const int slotBytes : {4096, 0}) {
    RankGroup group(ranks, suiteConfig(slotBytes));
    for (const int64_t tokens : batches) {
      for (const fcclStrategy_t strategy : kStrategies) {
        const size_t row =
            hash(static_cast<uint64_t>(tokens), static_cast<uint64_t>(strategy)) % static_cast<size_t>(tokens);
        FusedCase now = asked;
        now.strategy = strategy;
        FusedProblem problem = withRow(now, tokens, row, source, 0, static_cast<uint64_t>(tokens) + 77);
        const FusedOutputs outputs = runFused(group, problem);
        FusedCase shape = problem.asked();
        const RowBytes bytes = rowOf(shape, outputs, row);
        if (!expected) expected = bytes;
        INFO("row " << row << " of " << tokens << ", " << strategyName(strategy) << ", slots of " << slotBytes);
        REQUIRE((bytes == *expected));
      }
    }
  }
}

}  // namespace

TEST_CASE("invariance: a row alone and in any batch, bf16 NVFP4", "[invariance]") {
  FCCL_NEED_SUITE_DEVICE();
  FusedCase asked;
  asked.pattern = fcclPatternResidualRmsNormOutQuantNvfp4;
  asked.hidden = 288;
  asked.data = DataKind::kCancellation;
  rowDoesNotDependOnBatch(asked, 4, {1, 2, 64, 127, 128, 129});
}

TEST_CASE("invariance: a row alone and in any batch, fp32", "[invariance]") {
  FCCL_NEED_SUITE_DEVICE();
  // fp32 shows a change of the order of the sum of squares in the last bits, which 16-bit outputs would round away.
  FusedCase asked;
  asked.pattern = fcclPatternResidualRmsNorm;
  asked.dtype = fcclFloat32;
  asked.hidden = 1001;
  rowDoesNotDependOnBatch(asked, 3, {1, 2, 64, 127, 129});
}

TEST_CASE("invariance: a wide fp32 row in chunks and whole", "[invariance]") {
  FCCL_NEED_SUITE_DEVICE();
  FusedCase asked;
  asked.pattern = fcclPatternResidualRmsNormOutQuantFp8;
  asked.dtype = fcclFloat32;
  asked.hidden = 7168;
  rowDoesNotDependOnBatch(asked, 2, {1, 2, 9});
}

TEST_CASE("invariance: large batches", "[invariance]") {
  FCCL_NEED_SUITE_DEVICE();
  FusedCase asked;
  asked.pattern = fcclPatternResidualRmsNormOutQuantFp8;
  asked.dtype = fcclFloat16;
  asked.hidden = 100;
  rowDoesNotDependOnBatch(asked, 2, {1, 1664, 2048});
}

TEST_CASE("invariance: equal rows of one batch give equal bytes", "[invariance]") {
  FCCL_NEED_SUITE_DEVICE();
  // Rows of one call start at every alignment that an odd width makes.
  RankGroup group(3, suiteConfig(4096));
  for (const fcclStrategy_t strategy : kStrategies) {
    FusedCase asked;
    asked.dtype = fcclFloat32;
    asked.tokens = 17;
    asked.hidden = 511;
    asked.strategy = strategy;
    FusedProblem problem(asked, 3);
    const size_t rowBytes = size_t{511} * 4;
    for (size_t row = 1; row < 17; ++row) {
      for (Bytes& input : problem.inputs) std::memcpy(&input[row * rowBytes], input.data(), rowBytes);
      std::memcpy(&problem.residual[row * rowBytes], problem.residual.data(), rowBytes);
    }
    const FusedOutputs outputs = runFused(group, problem);
    for (size_t row = 1; row < 17; ++row) {
      INFO("row " << row << ", " << strategyName(strategy));
      CHECK((rowOf(asked, outputs, row) == rowOf(asked, outputs, 0)));
    }
  }
}

TEST_CASE("invariance: cancellation gives the same bits on all ranks, in every strategy and pattern", "[invariance]") {
  FCCL_NEED_SUITE_DEVICE();
  for (int ranks = 2; ranks <= 8; ++ranks) {
    RankGroup group(ranks, suiteConfig(4096));
    for (const fcclDataType_t dtype : {fcclFloat32, fcclBfloat16}) {
      for (const fcclFusionPattern_t pattern : allPatterns()) {
        std::optional<FusedOutputs> expected;
        for (const fcclStrategy_t strategy : kStrategies) {
          FusedCase asked;
          asked.pattern = pattern;
          asked.dtype = dtype;
          asked.tokens = 7;
          asked.hidden = 96;
          asked.strategy = strategy;
          asked.data = DataKind::kCancellation;
          asked.reducedOut = true;
          const FusedOutputs outputs = runFused(group, asked);  // compares the ranks
          if (!expected) expected = outputs;
          INFO(ranks << " ranks: " << asked.describe());
          REQUIRE((outputs == *expected));
        }
      }
    }
  }
}

TEST_CASE("invariance: NaN and Inf have the same bits on all ranks, in every strategy", "[invariance]") {
  FCCL_NEED_SUITE_DEVICE();
  for (const int ranks : {2, 3, 4}) {
    RankGroup group(ranks, suiteConfig(4096));
    for (const fcclDataType_t dtype : {fcclFloat32, fcclFloat16, fcclBfloat16}) {
      std::optional<FusedOutputs> expected;
      for (const fcclStrategy_t strategy : kStrategies) {
        FusedCase asked;
        asked.pattern = fcclPatternResidualRmsNormOutQuantNvfp4;
        asked.dtype = dtype;
        asked.tokens = 22;
        asked.hidden = 80;
        asked.strategy = strategy;
        asked.data = DataKind::kSpecial;
        asked.reducedOut = true;
        const FusedOutputs outputs = runFused(group, asked);
        if (!expected) expected = outputs;
        INFO(ranks << " ranks: " << asked.describe());
        REQUIRE((outputs == *expected));
      }
    }
  }
}

TEST_CASE("invariance: the same call gives the same bits every time", "[invariance]") {
  FCCL_NEED_SUITE_DEVICE();
  RankGroup group(4, suiteConfig());
  FusedCase asked;
  asked.pattern = fcclPatternResidualRmsNormQuantNvfp4;
  asked.tokens = 9;
  asked.hidden = 1024;
  asked.data = DataKind::kCancellation;
  FusedProblem problem(asked, 4);
  const FusedOutputs first = runFused(group, problem);
  for (int i = 0; i < 20; ++i) REQUIRE((runFused(group, problem) == first));
}
