// The model against times that were measured (docs/performance.md): within 25 %, but for the rows that say otherwise.
#include "tests/support/catch.h"
#include "tuner/cost_model.h"
#include "tuner/paper_facts.h"

using namespace fccl;

namespace {

Query query(int64_t tokens, bool norm, QuantKind quant = QuantKind::kNone) {
  Query asked;
  asked.dtype = fcclBfloat16;
  asked.norm = norm;
  asked.quant = quant;
  asked.rows = norm ? tokens : 1;
  asked.cols = norm ? 8192 : 8192 * tokens;
  return asked;
}

Topology h200(int gpus) {
  Topology topology = readTopology(std::string(FCCL_SOURCE_DIR) + "/transport/topologies/hgx-h200.json").value();
  topology.nodes[0].gpus.resize(static_cast<size_t>(gpus));
  std::erase_if(topology.nodes[0].links, [&](const TopologyLink& link) { return link.second >= gpus; });
  return topology;
}

}  // namespace

TEST_CASE("cost model: against what was measured on H200", "[cost]") {
  struct Measured {
    const char* strategy;
    int gpus;
    int ranks;
    int64_t tokens;
    bool norm;
    QuantKind quant;
    double microseconds;
    bool off;  // by more than 25 %
  };
  constexpr auto kNone = QuantKind::kNone;
  const Measured table[] = {
      {"ONESHOT", 2, 2, 1, false, kNone, 2.18, false},
      {"ONESHOT", 2, 2, 64, false, kNone, 5.07, false},
      {"ONESHOT", 2, 2, 256, false, kNone, 13.8, false},
      {"ONESHOT", 2, 2, 1024, false, kNone, 49.8, false},
      {"ONESHOT", 2, 2, 4096, false, kNone, 192.6, false},
      {"ONESHOT", 2, 2, 1, true, kNone, 2.80, false},
      {"ONESHOT", 2, 2, 64, true, kNone, 5.80, false},
      {"ONESHOT", 2, 2, 256, true, kNone, 15.8, false},
      {"ONESHOT", 2, 2, 1024, true, kNone, 52.8, false},
      {"ONESHOT", 2, 2, 4096, true, kNone, 199.5, false},
      {"ONESHOT", 2, 2, 64, true, QuantKind::kFp8, 5.93, false},
      {"ONESHOT", 2, 2, 64, true, QuantKind::kNvfp4, 6.53, false},
      {"ONESHOT", 2, 2, 1024, true, QuantKind::kNvfp4, 54.1, false},
      {"TWOSHOT", 2, 2, 64, true, kNone, 13.2, false},
      {"TWOSHOT", 2, 2, 1024, true, kNone, 70.1, false},
      {"NCCL", 2, 2, 1, false, kNone, 6.90, false},
      {"NCCL", 2, 2, 64, false, kNone, 13.95, false},
      {"NCCL", 2, 2, 256, false, kNone, 32.2, true},
      {"NCCL", 2, 2, 1024, false, kNone, 76.8, false},
      {"NCCL", 2, 2, 4096, false, kNone, 245.5, false},
      {"NCCL", 2, 2, 1, true, kNone, 9.01, false},
      {"NCCL", 2, 2, 1024, true, kNone, 96.0, false},
      {"NCCL", 2, 2, 4096, true, kNone, 320.7, false},
      {"ONESHOT", 1, 2, 1, true, kNone, 2.41, false},
      {"ONESHOT", 1, 2, 64, true, kNone, 4.45, false},
      {"ONESHOT", 1, 2, 1024, true, kNone, 57.0, false},
      {"ONESHOT", 1, 2, 1024, false, kNone, 40.3, false},
      {"ONESHOT", 1, 4, 64, true, kNone, 16.8, false},
      {"ONESHOT", 1, 4, 256, true, kNone, 67.3, false},
      {"ONESHOT", 1, 4, 1024, true, kNone, 279, false},
      {"ONESHOT", 1, 8, 64, true, kNone, 69.4, false},
      {"ONESHOT", 1, 8, 256, true, kNone, 272, false},
      {"ONESHOT", 1, 8, 1024, true, kNone, 1092, false},
      {"TWOSHOT", 1, 4, 64, true, kNone, 35.6, true},
      {"TWOSHOT", 1, 4, 256, true, kNone, 53.5, false},
      {"TWOSHOT", 1, 4, 1024, true, kNone, 215, false},
      {"TWOSHOT", 1, 8, 64, true, kNone, 74.1, true},
      {"TWOSHOT", 1, 8, 256, true, kNone, 116, false},
      {"TWOSHOT", 1, 8, 1024, true, kNone, 455, false},
      {"UB", 1, 2, 1, false, kNone, 5.52, false},
      {"UB", 1, 2, 1024, false, kNone, 23.3, false},
      {"UB", 1, 2, 4096, false, kNone, 75.8, false},
      {"UB", 1, 2, 256, true, kNone, 15.7, false},
      {"UB", 1, 2, 1024, true, kNone, 45.3, false},
      {"ONESHOT", 1, 1, 4096, true, kNone, 72.3, false},
  };
  for (const Measured& row : table) {
    const std::optional<Cost> cost =
        predict(row.strategy, query(row.tokens, row.norm, row.quant), paperFacts(h200(row.gpus), row.ranks));
    REQUIRE(cost.has_value());
    const double ratio = cost->total() / row.microseconds;
    INFO(fmt::format("{}, {} ranks on {} GPUs, {} tokens, norm {}: predicted {:.2f}, measured {:.2f}, ratio {:.2f}",
                     row.strategy, row.ranks, row.gpus, row.tokens, row.norm, cost->total(), row.microseconds, ratio));
    CHECK((ratio < 0.75 || ratio > 1.25) == row.off);
  }
}

TEST_CASE("cost model: more bytes, ranks and slower links never cost less", "[cost]") {
  const Facts facts = paperFacts(h200(8), 4);
  for (const char* strategy : {"ONESHOT", "TWOSHOT", "UB", "NCCL"}) {
    INFO(strategy);
    double before = 0;
    for (int64_t tokens = 1; tokens <= 16384; tokens *= 2) {
      const double now = predict(strategy, query(tokens, true), facts)->total();
      CHECK(now >= before);
      before = now;
    }
    Facts slower = facts;
    slower.group.gigabytesPerSecond /= 2;
    CHECK(predict(strategy, query(1024, true), slower)->total() > predict(strategy, query(1024, true), facts)->total());
    CHECK(predict(strategy, query(1024, true), paperFacts(h200(8), 8))->total() >
          predict(strategy, query(1024, true), facts)->total());
  }
}

TEST_CASE("cost model: nothing is predicted from rates that are not known, for HOST, or for other strategies",
          "[cost]") {
  Facts facts = paperFacts(h200(8), 4);
  CHECK(predict("ONESHOT", query(1, true), facts).has_value());
  CHECK_FALSE(predict("HIERARCHICAL", query(1, true), facts).has_value());
  CHECK_FALSE(predict("MIN_LATENCY", query(1, true), facts).has_value());
  Facts unknown = facts;
  unknown.group.gigabytesPerSecond = 0;
  CHECK_FALSE(predict("ONESHOT", query(1, true), unknown).has_value());
  unknown = facts;
  unknown.group.memoryGigabytesPerSecond = 0;
  CHECK_FALSE(predict("ONESHOT", query(1, true), unknown).has_value());
  facts.device = fcclDeviceHost;
  CHECK_FALSE(predict("ONESHOT", query(1, true), facts).has_value());
}
