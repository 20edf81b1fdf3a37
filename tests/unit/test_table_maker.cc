#include <nlohmann/json.hpp>

#include "tests/perf/table_maker.h"
#include "tests/support/catch.h"

using namespace fccl::perf;
using Json = nlohmann::json;

namespace {

struct Timed {
  const char* strategy;
  int64_t tokens;
  double microseconds;
  double nccl = 0;
  const char* pattern = "residual_rms_norm";
  bool sharded = false;
};

Json report(const std::vector<Timed>& rows, int ranks = 2, const char* gpus = "2 x NVIDIA H200, CUDA driver 13.0") {
  Json json = {{"program", "fccl-perf"}, {"device", "cuda"}, {"ranks", ranks}, {"hardware", {{"gpus", gpus}}}};
  json["rows"] = Json::array();
  for (const Timed& row : rows) {
    Json series = Json::array();
    series.push_back({{"variant", "fccl"}, {"place", "out"}, {"median_us", row.microseconds}, {"wrong", 0}});
    series.push_back({{"variant", "fccl"}, {"place", "in"}, {"median_us", 0.001}, {"wrong", 0}});
    series.push_back({{"variant", "unfused"}, {"place", "out"}, {"median_us", 0.001}});
    if (row.nccl > 0) series.push_back({{"variant", "nccl"}, {"place", "out"}, {"median_us", row.nccl}});
    json["rows"].push_back({{"case",
                             {{"pattern", row.pattern},
                              {"strategy", row.strategy},
                              {"op", "sum"},
                              {"windows", false},
                              {"sharded_residual", row.sharded},
                              {"hidden", 8192},
                              {"tokens", row.tokens},
                              {"text", "a case"}}},
                            {"series", series}});
  }
  return json;
}

MadeTable make(const std::vector<Json>& reports) {
  std::vector<std::pair<std::string, Json>> named;
  for (const Json& one : reports) named.emplace_back("r.json", one);
  return makeTable(named, {.generation = 90, .source = "a test"});
}

std::string errorOf(const Json& json, const Json& second = report({})) {
  try {
    make({json, second});
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("table maker: the fastest of all reports, NCCL beside them too", "[table]") {
  const MadeTable made =
      make({report({{"oneshot", 1, 2.0, 7.0}, {"oneshot", 256, 20, 50}, {"oneshot", 4096, 400, 250}}),
            report({{"twoshot", 1, 5.0}, {"twoshot", 256, 15}, {"twoshot", 4096, 300}, {"lowprecision", 256, 2}}),
            report({{"twoshot", 1, 0.1, 0, "residual_rms_norm", true}}),  // other calls
            report({{"oneshot", 1, 3.0, 0, "all_reduce"}, {"twoshot", 1, 2.0, 0, "all_reduce"}}, 4)});
  CHECK(made.csv ==
        "# generation: 90\n# kernels: fccl\n# device: NVIDIA H200\n# source: a test\nranks,op,hidden,tokens,strategy\n"
        "2,RESIDUAL_RMS_NORM,8192,1,ONESHOT\n2,RESIDUAL_RMS_NORM,8192,256,TWOSHOT\n"
        "2,RESIDUAL_RMS_NORM,8192,4096,NCCL\n4,NONE,8192,1,TWOSHOT\n");
  CHECK(made.cells == 4);
  CHECK(made.notes.empty());
}

TEST_CASE("table maker: a tie goes to the strategy of fewer tokens, several runs to their median", "[table]") {
  const MadeTable made = make({report({{"oneshot", 1, 2.0}, {"oneshot", 2, 2.05}, {"oneshot", 4, 2.2}}),
                               report({{"twoshot", 1, 4.0}, {"twoshot", 2, 2.0}, {"twoshot", 4, 2.0}}),
                               report({{"oneshot", 1, 9.0}, {"twoshot", 1, 4.1}, {"oneshot", 1, 2.1}})});
  CHECK(has(made.csv, "8192,1,ONESHOT\n"));
  CHECK(has(made.csv, "8192,2,ONESHOT\n"));
  CHECK(has(made.csv, "8192,4,TWOSHOT\n"));
}

TEST_CASE("table maker: what settles nothing is left out and said", "[table]") {
  const MadeTable made = make({report({{"auto", 1, 2.0, 7.0}, {"oneshot", 8, 2.0}})});
  CHECK(made.cells == 0);
  REQUIRE(made.notes.size() == 2);
  CHECK(made.notes[0] == "2 ranks, RESIDUAL_RMS_NORM, hidden 8192, 1 tokens: left out, since only NCCL was timed.");
  CHECK(made.notes[1] == "2 ranks, RESIDUAL_RMS_NORM, hidden 8192, 8 tokens: left out, since only ONESHOT was timed.");
}

TEST_CASE("table maker: reports that cannot be used are refused by name", "[table]") {
  CHECK(has(errorOf(Json::object()), "r.json: not a report of fccl-perf"));
  Json host = report({});
  host["device"] = "host";
  CHECK(has(errorOf(host), "--device cuda"));
  CHECK(has(errorOf(report({}), report({}, 2, "8 x NVIDIA B200, CUDA driver 13.0")),
            "NVIDIA B200, but reports before have NVIDIA H200"));
  Json wrong = report({{"oneshot", 1, 2.0}});
  wrong["rows"][0]["series"][0]["wrong"] = 3;
  CHECK(has(errorOf(wrong), "a case has wrong results"));
  Json other = report({{"ub", 1, 2.0}});
  other["rows"][0]["series"][0]["chosen"] = "ONESHOT";
  CHECK(errorOf(other) == "r.json: a case is a time of ONESHOT, not of UB.");
  other["rows"][0]["series"][0]["chosen"] = "UB";
  CHECK(errorOf(other).empty());
}
