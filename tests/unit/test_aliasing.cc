// Which buffers of one call may be the same and which may not.
#include <fmt/format.h>

#include <functional>

#include "tests/support/catch.h"
#include "tests/support/fused_case.h"

using namespace fccl::test;

namespace {

constexpr int64_t kTokens = 5;
constexpr int64_t kHidden = 128;

FusedCase caseOf(fcclFusionPattern_t pattern, fcclStrategy_t strategy) {
  FusedCase asked;
  asked.pattern = pattern;
  asked.strategy = strategy;
  asked.tokens = kTokens;
  asked.hidden = kHidden;
  return asked;
}

// A call of which one output has been moved onto other memory must be refused by every rank.
struct Move {
  const char* name;
  const char* words;
  std::function<void(fcclFusedArgs_t&)> move;
};

char* at(const void* pointer, size_t bytes) { return const_cast<char*>(static_cast<const char*>(pointer)) + bytes; }

}  // namespace

TEST_CASE("aliasing: every other overlap of an output is refused, and nothing is written", "[aliasing]") {
  RankGroup group(2);
  const size_t rowBytes = static_cast<size_t>(kHidden) * 2;
  const size_t dataBytes = rowBytes * static_cast<size_t>(kTokens);
  const std::vector<Move> table = {
      {"normOut on residual", "normOut|residual", [](auto& a) { a.normOut = at(a.residual, 0); }},
      {"normOut on residualOut", "normOut|residualOut", [](auto& a) { a.normOut = a.residualOut; }},
      {"normOut on reducedOut", "normOut|reducedOut", [](auto& a) { a.normOut = a.reducedOut; }},
      {"normOut and reducedOut on input", "normOut|reducedOut",
       [](auto& a) { a.normOut = a.reducedOut = at(a.input, 0); }},
      {"normOut on weight", "normOut|weight", [](auto& a) { a.normOut = at(a.weight, 0); }},
      {"residualOut on input", "residualOut|input", [](auto& a) { a.residualOut = at(a.input, 0); }},
      {"residualOut on weight", "residualOut|weight", [](auto& a) { a.residualOut = at(a.weight, 0); }},
      {"reducedOut on residual", "reducedOut|residual", [](auto& a) { a.reducedOut = at(a.residual, 0); }},
      {"reducedOut on residualOut", "reducedOut|residualOut", [](auto& a) { a.reducedOut = a.residualOut; }},
      {"quantOut on input", "quantOut|input", [](auto& a) { a.quantOut = at(a.input, 0); }},
      {"quantOut on the last byte of residual", "quantOut|residual",
       [=](auto& a) { a.quantOut = at(a.residual, dataBytes - 1); }},
      {"quantOut on normOut", "quantOut|normOut", [](auto& a) { a.quantOut = a.normOut; }},
      {"scaleOut on quantOut", "scaleOut|quantOut", [](auto& a) { a.scaleOut = a.quantOut; }},
      {"scaleOut on input", "scaleOut|input", [](auto& a) { a.scaleOut = at(a.input, 0); }},
      {"scaleOut on the global scale", "scaleOut|nvfp4GlobalScale",
       [](auto& a) { a.scaleOut = at(a.nvfp4GlobalScale, 0); }},
      {"residualOut one row into residual", "residualOut|residual",
       [=](auto& a) { a.residualOut = at(a.residual, rowBytes); }},
      {"residualOut one row before residual", "residualOut|residual",
       [=](auto& a) { a.residualOut = at(a.residual, 0) - rowBytes; }},
      {"reducedOut one element into input", "reducedOut|input", [](auto& a) { a.reducedOut = at(a.input, 2); }},
      {"normOut one row into input", "normOut|input", [=](auto& a) { a.normOut = at(a.input, rowBytes); }},
      {"normOut over the last element of residualOut", "normOut|residualOut",
       [=](auto& a) { a.normOut = at(a.residualOut, dataBytes - 2); }},
  };
  FusedCase asked = caseOf(fcclPatternResidualRmsNormOutQuantNvfp4, fcclStrategyAuto);
  asked.reducedOut = true;
  FusedProblem problem(asked, 2);
  for (const Move& each : table) {
    group.run(each.name, [&](Rank& rank) {
      FusedBuffers own(problem, rank.rank, asked.pattern);
      fcclFusedArgs_t args = own.args;
      each.move(args);
      rank.fails(fcclAllReduceFused(&args, rank.comm, nullptr), fcclInvalidArgument, each.words, each.name);
      rank.expect(own.untouched(), fmt::format("{}: an output was written", each.name));
      rank.expect(own.intact().empty(), fmt::format("{}: {}", each.name, own.intact()));
    });
  }
  runFused(group, problem);
}

TEST_CASE("aliasing: inputs may share memory, and outputs may touch", "[aliasing]") {
  RankGroup group(2);
  group.run("input == residual, outputs in one block", [](Rank& rank) {
    constexpr size_t kCount = size_t{3} * 32;
    std::vector<float> input(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      input[i] = static_cast<float>(inputValue(DataKind::kPlain, fcclFloat32, 9, 0, 2, 0, i));
    }
    const std::vector<float> weight(32, 1.0f);
    std::vector<float> block(2 * kCount, 0.0f);
    fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
    args.pattern = fcclPatternResidualRmsNorm;
    args.dtype = fcclFloat32;
    args.tokens = 3;
    args.hidden = 32;
    args.input = args.residual = input.data();
    args.weight = weight.data();
    args.residualOut = block.data();
    args.normOut = block.data() + kCount;
    rank.ok(fcclAllReduceFused(&args, rank.comm, nullptr), "shared inputs");
    for (size_t i = 0; i < kCount; ++i) {
      rank.expect(block[i] == input[i] + input[i] + input[i], "residualOut is not the sum and the residual");
    }
  });
}
