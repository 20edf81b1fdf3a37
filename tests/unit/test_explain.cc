// Decisions in words: the original's four worked examples by its rules and by ours, and fcclExplain.
#include <cstring>
#include <memory>

#include "fccl_nccl.h"
#include "lib/asked_call.h"
#include "tests/support/catch.h"
#include "tests/support/topologies.h"
#include "tuner/compat_trtllm.h"
#include "tuner/explain.h"
#include "tuner/paper_facts.h"
#include "tuner/tuning_table.h"

using namespace fccl;
using fccl::test::shippedFacts;

namespace {

fcclQuery_t asked(fcclFusionPattern_t pattern, int64_t tokens, int64_t hidden = 8192) {
  fcclQuery_t query = FCCL_QUERY_INITIALIZER;
  query.pattern = pattern;
  query.tokens = tokens;
  query.hidden = hidden;
  return query;
}

std::string original(const Facts& facts, fcclFusionPattern_t pattern, int64_t tokens, int64_t hidden = 8192,
                     std::string* steps = nullptr) {
  const CompatTrace trace = trtllmTrace(facts, pattern, tokens, hidden, fcclBfloat16);
  for (const std::string& step : trace.steps) {
    CHECK(step.back() == '.');
    if (steps != nullptr) *steps += step + "\n";
  }
  return trace.choice;
}

Explanation ours(const Facts& facts, const fcclQuery_t& query) {
  return explain(describeCall(query, facts.ranks), queryOf(query).value(), facts, query.strategy);
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

constexpr auto kNorm = fcclPatternResidualRmsNorm;
constexpr auto kNvfp4 = fcclPatternResidualRmsNormQuantNvfp4;

}  // namespace

TEST_CASE("worked example: four B200, 64 tokens: ONESHOT by the table, here too", "[explain]") {
  const Facts facts = shippedFacts("dgx-b200", 4);
  std::string steps;
  CHECK(original(facts, kNorm, 64, 8192, &steps) == "ONESHOT");
  CHECK(steps ==
        "MNNVL: the ranks are not several nodes of one fabric: passed on.\n"
        "LOWPRECISION is not asked for.\n"
        "1048576 bytes fit the workspace of 67108864.\n"
        "One node, peer access and NVLink between all: the table decides.\n"
        "Table trtllm_sm100 (B200): 4 ranks, hidden 8192, 64 tokens: ONESHOT.\n");
  const Explanation explanation = ours(facts, asked(kNorm, 64));
  CHECK(explanation.choice == "ONESHOT");
  CHECK(explanation.call == "RESIDUAL_RMS_NORM, 64 tokens x 8192 of bf16, 4 ranks: 1048576 bytes per rank");
  REQUIRE(explanation.steps.size() == 3);
  CHECK(explanation.steps[0] == "4 ranks on 1 node, a GPU each, compute capability 10.0.");
  CHECK(explanation.steps[1] ==
        "The slowest way between two of them: nvswitch, 729 GB/s each way, peer access between all, multicast.");
  CHECK(explanation.steps[2] == "Table trtllm_sm100 (B200): 4 ranks, hidden 8192, 64 tokens: ONESHOT.");
}

TEST_CASE("worked example: eight H100, 64 tokens: NCCL by the table; here the model decides", "[explain]") {
  const Facts facts = shippedFacts("dgx-h100", 8);
  CHECK(original(facts, kNorm, 64) == "NCCL");
  const Explanation explanation = ours(facts, asked(kNorm, 64));
  CHECK(
      has(explanation.text(), "64 tokens: NCCL, where NCCL beat that table's kernels, not FCCL's: the model decides."));
  CHECK(explanation.choice == "TWOSHOT");
}

TEST_CASE("worked example: eight B200, 64 tokens: ONESHOT", "[explain]") {
  const Facts facts = shippedFacts("dgx-b200", 8);
  CHECK(original(facts, kNorm, 64) == "ONESHOT");
  CHECK(ours(facts, asked(kNorm, 64)).choice == "ONESHOT");
}

TEST_CASE("worked example: eight GPUs of an NVL72, NVFP4: NCCL by the original, MNNVL's place here", "[explain]") {
  const Facts facts = shippedFacts("gb200-nvl72", 8);
  std::string steps;
  CHECK(original(facts, kNvfp4, 64, 8192, &steps) == "NCCL");
  CHECK(has(steps, "does not fuse this pattern: passed on."));
  CHECK(has(steps, "The ranks are on 2 nodes, so P2P is off: NCCL"));
  CHECK(original(facts, kNorm, 64) == "MNNVL");

  const Explanation explanation = ours(facts, asked(kNvfp4, 64));
  for (const ExplainedStrategy& strategy : explanation.strategies) {
    INFO(strategy.name << ": " << strategy.reason);
    if (strategy.name == "ONESHOT") CHECK(has(strategy.reason, "all ranks on one node"));
    if (strategy.name != "MNNVL") continue;
    const bool planned = strategy.reason == "not in this version; these ranks and this call have what it needs.";
    CHECK((strategy.reason.empty() || planned));
  }
}

TEST_CASE("compat: what sends a call to NCCL before the table", "[explain]") {
  const Facts b200 = shippedFacts("dgx-b200", 8);
  CHECK(original(b200, kNorm, 4096) == "TWOSHOT");
  CHECK(original(b200, kNorm, 4097) == "NCCL");            // 64 MiB and a row
  CHECK(original(b200, fcclPatternRmsNorm, 1) == "NCCL");  // no column
  CHECK(original(b200, kNorm, 1, 16384) == "NCCL");        // out of range
  CHECK(original(shippedFacts("pcie-l40s", 4), kNorm, 1) == "NCCL");
  CHECK(original(shippedFacts("dgx-b200", 1), kNorm, 1) == "none");
  Facts apart = b200;
  apart.group.peerAccess = false;
  CHECK(original(apart, kNorm, 1) == "NCCL");
  // Three ranks count as two, and no fabric's MNNVL takes three.
  CHECK(original(shippedFacts("dgx-b200", 3), kNorm, 1) == "ONESHOT");
  CHECK(original(shippedFacts("gb200-nvl72", 6), kNorm, 1) == "NCCL");
}

TEST_CASE("explain: every strategy is there, the choice is marked, and a name that cannot is told why", "[explain]") {
  fcclQuery_t query = asked(kNorm, 256);
  query.strategy = fcclStrategyUb;
  const Facts facts = shippedFacts("hgx-h200", 4);
  Explanation explanation = ours(facts, query);
  CHECK(explanation.choice.empty());
  CHECK(has(explanation.text(), "Asked for by name: UB needs the input in a window"));
  CHECK(has(explanation.text(), "-> no strategy of this version can do this call"));

  query.inputInWindow = 1;
  explanation = ours(facts, query);
  CHECK(explanation.choice == "UB");
  for (const KnownStrategy& strategy : knownStrategies()) {
    CHECK(has(explanation.text(),
              fmt::format("{} {:<16}", explanation.choice == strategy.name ? "*" : " ", strategy.name)));
  }
  CHECK(has(explanation.text(), "* UB              eligible, workspace 0 bytes per rank, model "));
}

TEST_CASE("fcclExplain: says what a communicator does", "[explain]") {
  fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
  config.deviceType = fcclDeviceHost;
  fcclComm_t comms[2];
  REQUIRE(fcclCommInitAll(comms, 2, &config) == fcclSuccess);
  fcclQuery_t query = asked(kNorm, 64, 2880);
  std::string text(8192, '?');
  REQUIRE(fcclExplain(comms[1], &query, text.data(), text.size()) == fcclSuccess);
  text.resize(std::strlen(text.c_str()));
  INFO(text);
  CHECK(
      text.starts_with("RESIDUAL_RMS_NORM, 64 tokens x 2880 of bf16, 2 ranks: 368640 bytes per rank\n"
                       " 1. 2 ranks on 1 node, HOST.\n"));
  CHECK(has(text, "HOST: size, ranks and the measured time of a flag: "));
  CHECK(has(text, "* "));

  // The room that is needed, exactly.
  const size_t needed = text.size() + 1;
  const auto errorWith = [&](char* buffer, size_t size) {
    CHECK(fcclExplain(comms[0], &query, buffer, size) == fcclInvalidArgument);
    return std::string(fcclGetLastError(comms[0]));
  };
  CHECK(has(errorWith(nullptr, 0), fmt::format("this text needs {} bytes", needed)));
  std::string small(needed, '?');
  CHECK(fcclExplain(comms[0], &query, small.data(), needed) == fcclSuccess);
  CHECK(has(errorWith(small.data(), needed - 1), fmt::format("size is {}", needed - 1)));
  CHECK(std::string(small.c_str()) == text.substr(0, needed - 2));

  const auto wrong = [&](auto change) {
    fcclQuery_t bad = query;
    change(bad);
    CHECK(fcclExplain(comms[0], &bad, small.data(), needed) == fcclInvalidArgument);
    return std::string(fcclGetLastError(comms[0]));
  };
  CHECK(has(wrong([](fcclQuery_t& q) { q.magic = 1; }), "FCCL_QUERY_INITIALIZER"));
  CHECK(has(wrong([](fcclQuery_t& q) { q.version = 2; }), "version is 2"));
  CHECK(has(wrong([](fcclQuery_t& q) { q.tokens = 0; }), "tokens is 0"));
  CHECK(has(wrong([](fcclQuery_t& q) { q.hidden = -1; }), "hidden is -1"));
  CHECK(has(wrong([](fcclQuery_t& q) { q.dtype = fcclInt8; }), "dtype is 0"));
  CHECK(has(wrong([](fcclQuery_t& q) { q.op = fcclMax; }), "takes fcclSum"));
  CHECK(has(wrong([](fcclQuery_t& q) { q.pattern = static_cast<fcclFusionPattern_t>(77); }), "pattern is 77"));
  CHECK(has(wrong([](fcclQuery_t& q) { q.strategy = static_cast<fcclStrategy_t>(99); }), "strategy is 99"));
  CHECK(has(wrong([](fcclQuery_t& q) { q.tokens = q.hidden = int64_t{1} << 40; }), "more than 64 bits"));
  CHECK(has(wrong([](fcclQuery_t& q) { q.pattern = kNvfp4, q.hidden = 24; }), "a multiple of 16"));
  CHECK(fcclExplain(comms[0], nullptr, small.data(), needed) == fcclInvalidArgument);
  CHECK(fcclExplain(nullptr, &query, small.data(), needed) == fcclInvalidArgument);
  for (fcclComm_t comm : comms) CHECK(fcclCommDestroy(comm) == fcclSuccess);
}

TEST_CASE("a query's rows end where those of the call would, the quantized ones too", "[explain]") {
  fcclQuery_t query = FCCL_QUERY_INITIALIZER;
  query.dtype = fcclBfloat16;
  query.tokens = 3;
  query.hidden = 96;  // 192 bytes, in NVFP4 48
  query.pattern = fcclPatternResidualRmsNorm;
  CHECK(queryOf(query).value().outputsAligned);
  query.pattern = fcclPatternResidualRmsNormQuantNvfp4;
  CHECK_FALSE(queryOf(query).value().outputsAligned);
  query.hidden = 128;
  CHECK(queryOf(query).value().outputsAligned);
}

TEST_CASE("fcclFasterThanNccl: by times of both where there are, else by whose strategy the call takes", "[explain]") {
  fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
  config.deviceType = fcclDeviceHost;
  fcclComm_t comm = nullptr;
  REQUIRE(fcclCommInitAll(&comm, 1, &config) == fcclSuccess);
  fcclQuery_t query = asked(fcclPatternAllReduce, 1, 1024);
  int faster = -1;
  CHECK(fcclFasterThanNccl(comm, &query, &faster) == fcclSuccess);
  CHECK(faster == 1);
  CHECK(fcclFasterThanNccl(comm, nullptr, &faster) == fcclInvalidArgument);
  CHECK(fcclFasterThanNccl(comm, &query, nullptr) == fcclInvalidArgument);
  CHECK(fcclFasterThanNccl(nullptr, &query, &faster) == fcclInvalidArgument);
  query.tokens = 0;
  CHECK(fcclFasterThanNccl(comm, &query, &faster) == fcclInvalidArgument);
  CHECK(fcclCommDestroy(comm) == fcclSuccess);

  Facts facts;
  facts.device = fcclDeviceCuda;
  facts.ranks = 2;
  facts.noNccl = "";
  query.tokens = 1;
  const Query sum = queryOf(query).value();
  const auto isFaster = [&](fcclStrategy_t wanted = fcclStrategyAuto, fcclStrategy_t standsForAuto = fcclStrategyAuto) {
    return fasterThanNccl(sum, facts, wanted, standsForAuto);
  };
  CHECK(isFaster());
  CHECK_FALSE(isFaster(fcclStrategyNccl));
  CHECK_FALSE(isFaster(fcclStrategyAuto, fcclStrategyNccl));
  const auto tuned = [&](double nccl) {
    auto table = std::make_shared<TuningTable>();
    table->put(seriesOf(sum),
               {tuningSize(sum),
                fcclStrategyOneshot,
                {{fcclStrategyOneshot, 2, 4}, {fcclStrategyTwoshot, 8, 8}, {fcclStrategyNccl, nccl, nccl}}});
    facts.tuned = std::move(table);
  };
  tuned(3.5);
  CHECK(isFaster());
  CHECK_FALSE(isFaster(fcclStrategyTwoshot));
  tuned(2.5);
  CHECK_FALSE(isFaster());
}
