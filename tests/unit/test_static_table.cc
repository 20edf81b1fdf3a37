// The tables compiled in, the index rules of the original's, and the figures that the documentation prints.
#include <algorithm>
#include <fstream>
#include <sstream>
#include <tuple>

#include "tests/support/catch.h"
#include "tests/support/topologies.h"
#include "tuner/paper_facts.h"
#include "tuner/static_table.h"

using namespace fccl;
using fccl::test::shippedFacts;

namespace {

const StaticTable& original(int generation) {
  const StaticTable* table = findTable("trtllm", generation);
  REQUIRE(table != nullptr);
  return *table;
}

std::string at(const StaticTable& table, int64_t ranks, TableOp op, int64_t hidden, int64_t tokens) {
  const TableCell* cell = lookUp(table, {ranks, op, hidden, tokens});
  return cell == nullptr ? "none" : tableStrategyName(cell->strategy);
}

Query normQuery(int64_t rows, int64_t cols) {
  Query query;
  query.dtype = fcclBfloat16;
  query.norm = true;
  query.rows = rows;
  query.cols = cols;
  return query;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("tables: what is compiled in is what the files have", "[table]") {
  CHECK(staticTables().size() >= 2);
  for (const StaticTable& table : staticTables()) {
    INFO(table.name);
    const auto order = [](const TableCell& cell) { return std::tuple(cell.ranks, cell.op, cell.hidden, cell.tokens); };
    CHECK(std::ranges::is_sorted(table.cells, {}, order));
    CHECK(std::ranges::adjacent_find(table.cells, {}, order) == table.cells.end());
    CHECK(std::string(table.source).size() > 10);
    std::ifstream file(std::string(FCCL_SOURCE_DIR) + "/tuner/tables/" + table.name + ".csv");
    std::string line;
    size_t cells = 0;
    while (std::getline(file, line)) cells += !line.empty() && line[0] >= '0' && line[0] <= '9';
    CHECK(cells == table.cells.size());
  }
  const auto count = [](const StaticTable& table, const char* name) {
    return std::ranges::count_if(
        table.cells, [&](const TableCell& cell) { return std::string(tableStrategyName(cell.strategy)) == name; });
  };
  CHECK(count(original(90), "ONESHOT") == 661);
  CHECK(count(original(90), "TWOSHOT") == 56);
  CHECK(count(original(90), "NCCL") == 543);
  CHECK(count(original(100), "ONESHOT") == 964);
  CHECK(count(original(100), "TWOSHOT") == 89);
  CHECK(count(original(100), "NCCL") == 207);
}

TEST_CASE("tables: indices are cut to the powers of two below, and out of range there is nothing", "[table]") {
  const StaticTable& b200 = original(100);
  const TableOp op = TableOp::kResidualRmsNorm;
  const auto same = [&](int64_t ranks, int64_t hidden, int64_t tokens, int64_t r, int64_t h, int64_t t) {
    const TableCell* cell = lookUp(b200, {ranks, op, hidden, tokens});
    INFO(ranks << ", " << hidden << ", " << tokens);
    REQUIRE(cell != nullptr);
    CHECK(cell->ranks == r);
    CHECK(cell->hidden == h);
    CHECK(cell->tokens == t);
  };
  same(6, 7168, 100, 4, 4096, 64);
  same(3, 5120, 1, 2, 4096, 1);
  same(15, 16383, 32767, 8, 8192, 16384);
  same(8, 127, 3, 8, 128, 2);
  same(8, 65, 3, 8, 128, 2);
  for (const auto& [ranks, hidden, tokens] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{{16, 4096, 1},
                                                                                                {1, 4096, 1},
                                                                                                {0, 4096, 1},
                                                                                                {8, 16384, 1},
                                                                                                {8, 64, 1},
                                                                                                {8, 0, 1},
                                                                                                {8, 4096, 32768},
                                                                                                {8, 4096, 0}}) {
    INFO(ranks << ", " << hidden << ", " << tokens);
    CHECK(at(b200, ranks, op, hidden, tokens) == "none");
  }
}

TEST_CASE("tables: one of FCCL's own says nothing of more ranks than it lists", "[table]") {
  const StaticTable* own = findTable("fccl", 90);
  REQUIRE(own != nullptr);
  CHECK(at(*own, 2, TableOp::kResidualRmsNorm, 8192, 64) == "ONESHOT");
  CHECK(at(*own, 2, TableOp::kQuantNvfp4, 5000, 100) == "ONESHOT");
  CHECK(at(*own, 3, TableOp::kResidualRmsNorm, 8192, 64) == "none");
  CHECK(at(original(90), 3, TableOp::kResidualRmsNorm, 8192, 64) != "none");
}

TEST_CASE("tables: which generation gets which table of the original", "[table]") {
  for (const int sm : {75, 80, 89, 90}) CHECK(original(sm).generation == 90);
  for (const int sm : {100, 103, 120}) CHECK(original(sm).generation == 100);
  CHECK(findTable("nobody", 90) == nullptr);
}

TEST_CASE("tables: hidden 8192 on B200 as docs/selection.md prints it", "[table]") {
  std::string printed;
  for (const int ranks : {2, 4, 8}) {
    for (const auto& [op, name] : {std::pair(TableOp::kNone, "plain"), std::pair(TableOp::kResidualRmsNorm, "norm"),
                                   std::pair(TableOp::kQuantFp8, "FP8"), std::pair(TableOp::kQuantNvfp4, "NVFP4")}) {
      std::string row = fmt::format("| {}, {} |", ranks, name);
      for (int64_t tokens = 1; tokens <= 16384; tokens *= 2) {
        const std::string strategy = at(original(100), ranks, op, 8192, tokens);
        row += fmt::format(" {} |", strategy == "ONESHOT" ? "1" : strategy == "TWOSHOT" ? "2" : "N");
      }
      printed += row + "\n";
    }
  }
  std::ostringstream document;
  document << std::ifstream(std::string(FCCL_SOURCE_DIR) + "/docs/selection.md").rdbuf();
  INFO(printed);
  CHECK(has(document.str(), printed));
  CHECK(at(original(100), 2, TableOp::kResidualRmsNorm, 8192, 4096) == "ONESHOT");
  CHECK(at(original(100), 4, TableOp::kResidualRmsNorm, 8192, 256) == "ONESHOT");
}

TEST_CASE("AUTO on GPUs with links: the table, and the model where the table has NCCL or nothing", "[table]") {
  struct Expected {
    const char* file;
    int ranks;
    int64_t tokens;
    int64_t hidden;
    const char* strategy;
    const char* step;
  };
  const Expected expectations[] = {
      {"dgx-b200", 8, 64, 8192, "ONESHOT", "Table trtllm_sm100 (B200): 8 ranks, hidden 8192, 64 tokens: ONESHOT."},
      {"dgx-b200", 8, 300, 8192, "TWOSHOT", "8 ranks, hidden 8192, 256 tokens: TWOSHOT."},
      {"dgx-h100", 8, 64, 8192, "TWOSHOT", "NCCL beat that table's kernels, not FCCL's: the model decides."},
      {"hgx-h200", 2, 4096, 16384, "ONESHOT", "nothing for so many ranks, columns or tokens."},
      {"hgx-h200", 2, 4096, 8192, "ONESHOT",
       "Table fccl_sm90 (NVIDIA H200): 2 ranks, hidden 8192, 4096 tokens: ONESHOT."},
      {"hgx-h200", 3, 64, 8192, "ONESHOT", "Table trtllm_sm90 (H100): 2 ranks, hidden 8192, 64 tokens: ONESHOT."},
      {"pcie-l40s", 4, 1, 4096, "ONESHOT", "these GPUs have 8.9 and pcie."},
      {"hgx-h200", 16, 1024, 8192, "TWOSHOT", "Ranks share a GPU"},
      {"hgx-h200", 1, 1024, 8192, "ONESHOT", "One rank has nobody to wait for"},
      {"cpu-2-sockets", 4, 64, 8192, "TWOSHOT", "HOST: size, ranks"},
  };
  for (const Expected& expected : expectations) {
    const Decision decision =
        decide(normQuery(expected.tokens, expected.hidden), shippedFacts(expected.file, expected.ranks));
    std::string steps;
    for (const std::string& step : decision.steps) steps += step + "\n";
    INFO(expected.file << ", " << expected.ranks << " ranks, " << expected.tokens << " tokens:\n" << steps);
    REQUIRE(decision.row != nullptr);
    CHECK(std::string(decision.row->name) == expected.strategy);
    CHECK(has(steps, expected.step));
  }
  // Nothing crosses nodes.
  const Decision rack = decide(normQuery(64, 8192), shippedFacts("gb200-nvl72", 8));
  if (findStrategy(static_cast<fcclStrategy_t>(0)) == nullptr) {
    CHECK(rack.row == nullptr);
    CHECK(has(rack.steps.back(), "needs all ranks on one node"));
  }
}

TEST_CASE("AUTO: a rate that is not known leaves the rule", "[table]") {
  Facts facts = shippedFacts("pcie-l40s", 4);
  facts.group.gigabytesPerSecond = 0;
  const Decision decision = decide(normQuery(1, 4096), facts);
  REQUIRE(decision.steps.size() == 3);
  CHECK(decision.steps[1] == "The model knows no rate of these links, or of the memory.");
  CHECK(decision.steps[2] == "CUDA, links not known: the size: ONESHOT.");
}
