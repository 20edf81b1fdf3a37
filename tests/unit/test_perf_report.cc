// fccl-perf's parts that can be right or wrong without a clock: statistics, tables, JSON, options, the reference, and
// the loops that FCCL is compared with. FCCL_PERF_PARTS is defined where tests/perf is linked in.
#ifdef FCCL_PERF_PARTS
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/perf/check.h"
#include "tests/perf/options.h"
#include "tests/perf/report.h"
#include "tests/perf/suite.h"
#include "tests/support/catch.h"
#include "tests/support/text.h"

namespace fccl::perf {
namespace {

using test::contains;

Options optionsOf(std::vector<const char*> words) {
  words.insert(words.begin(), "fccl-perf");
  return parseOptions(static_cast<int>(words.size()), words.data());
}

int statusOf(const std::vector<const char*>& words, std::string* text = nullptr) {
  try {
    optionsOf(words);
  } catch (const EarlyExit& exit) {
    if (text != nullptr) *text = exit.what();
    return exit.status;
  }
  return -1;
}

Row exampleRow() {
  Row row;
  row.c.hidden = 4096;
  row.ping = {55, 60};
  Series fccl{.variant = "fccl", .iters = 100, .roundUs = {1.0, 3.0, 2.0}, .callUs = {1.0, 9.0}, .wrong = 0};
  Series mpi{.variant = "mpi", .iters = 10, .roundUs = {8.0, 8.0, 9.0}, .callUs = {7.0, 8.5}};
  row.series = {fccl, mpi};
  return row;
}

// A fused case whose outputs are made by `loops` from the exact sum, as a peer would.
class EpilogueOnly final : public Variant {
 public:
  EpilogueOnly(const Case& c, int ranks, const EpilogueLoops& loops)
      : Variant("loops", c, false, 0, std::make_unique<Buffers>(c, false, MemoryKind::kPlain, nullptr, 0)),
        case_(c),
        ranks_(ranks),
        loops_(loops) {}
  void run() override {
    std::vector<float> sum(case_.count());
    std::vector<float> wide(case_.count());
    std::vector<char> raw(case_.bytes());
    for (int rank = 0; rank < ranks_; rank++) {
      Producer(case_.dtype, fcclSum, rank).produce(raw.data(), case_.count(), 7);
      if (case_.dtype == fcclFloat32) {
        std::memcpy(wide.data(), raw.data(), raw.size());
      } else {
        loops_.widen(case_.dtype, raw.data(), wide.data(), case_.count());
      }
      for (size_t i = 0; i < sum.size(); i++) sum[i] += wide[i];
    }
    if (case_.dtype == fcclFloat32) {
      std::memcpy(buffers().output, sum.data(), case_.bytes());
    } else {
      loops_.narrow(case_.dtype, sum.data(), 1.0f, buffers().output, case_.count());
    }
    loops_.epilogue(epilogueArgs(case_, buffers(), buffers().output, case_.dtype));
  }

 private:
  const Case case_;
  const int ranks_;
  const EpilogueLoops& loops_;
};

}  // namespace

TEST_CASE("perf: percentiles are nearest rank, the median is the mean of the middle two", "[perf]") {
  std::vector<double> samples;
  for (int i = 100; i >= 1; i--) samples.push_back(i);
  CHECK(percentile(samples, 0.99) == 99);
  CHECK(percentile(samples, 0.5) == 50);
  CHECK(percentile(samples, 1.0) == 100);
  CHECK(percentile(samples, 0.0) == 1);
  CHECK(median(samples) == 50.5);
  CHECK(smallest(samples) == 1);
  samples.resize(15);  // 100 .. 86
  CHECK(percentile(samples, 0.99) == 100);
  CHECK(median(samples) == 93);
  CHECK(std::isnan(median({})));
  CHECK(std::isnan(percentile({}, 0.99)));
  CHECK(std::isnan(smallest({})));
}

TEST_CASE("perf: bandwidths are nccl-tests'", "[perf]") {
  const Bandwidth two = allReduceBandwidth(1'000'000, 100, 2);
  CHECK(two.algorithm == Approx(10.0));
  CHECK(two.bus == Approx(10.0));
  CHECK(allReduceBandwidth(1'000'000, 100, 8).bus == Approx(17.5));
  CHECK(allReduceBandwidth(1'000'000, 100, 1).bus == 0);
}

TEST_CASE("perf: the flag ping names the machine's state and its change", "[perf]") {
  CHECK(distanceOf(99) == Distance::kNear);
  CHECK(distanceOf(150) == Distance::kBetween);
  CHECK(distanceOf(201) == Distance::kFar);
  CHECK(distanceOf(200'000) == Distance::kOneCore);
  CHECK_FALSE(PingPair{60, 90}.changed());
  CHECK(PingPair{60, 91}.changed());
  CHECK(PingPair{250, 55}.changed());
  CHECK(PingPair{55, 58}.text() == "near 55/58 ns");
  CHECK(PingPair{55, 240}.text() == "state changed 55/240 ns");
  const double none = std::numeric_limits<double>::quiet_NaN();
  CHECK_FALSE(PingPair{none, none}.changed());
  CHECK(PingPair{none, none}.text() == "-");
}

TEST_CASE("perf: a row shows medians, p99, ratio and what was checked", "[perf]") {
  const Row row = exampleRow();
  CHECK(ratioTo(row, "mpi", false) == 0.25);
  CHECK(std::isnan(ratioTo(row, "mpi", true)));
  CHECK(std::isnan(ratioTo(row, "unfused", false)));
  const std::string text = rowText(row, 2);
  const std::string first = text.substr(0, text.find('\n'));
  const std::string second = text.substr(text.find('\n') + 1);
  CHECK(contains(first, "16384          4096      float     sum      -1      2.00    8.19    8.19      0 "));
  CHECK(contains(first, "9.00"));
  CHECK(contains(first, "near 55/60 ns"));
  CHECK(second.starts_with('#'));
  CHECK(contains(second, "mpi      8.00    2.05    2.05    N/A"));
  CHECK(contains(second, "fccl/mpi 0.250 -"));
  CHECK(contains(footText({row}, 2), "Out of bounds values : 0 OK"));
  Row bad = row;
  bad.series[0].wrong = 3;
  CHECK(totalWrong({row, bad}) == 3);
  CHECK(contains(footText({row, bad}, 2), "3 FAILED"));
}

TEST_CASE("perf: JSON keeps the raw rounds and the case", "[perf]") {
  const nlohmann::json json = nlohmann::json::parse(jsonOf(exampleRow(), 2).dump());
  CHECK(json["case"]["bytes"] == 16384);
  CHECK(json["case"]["pattern"] == "all_reduce");
  CHECK(json["state"] == "near");
  CHECK(json["state_changed"] == false);
  CHECK(json["series"][0]["round_us"] == nlohmann::json({1.0, 3.0, 2.0}));
  CHECK(json["series"][0]["median_us"] == 2.0);
  CHECK(json["series"][0]["wrong"] == 0);
  CHECK_FALSE(json["series"][1].contains("wrong"));
  CHECK(json["fccl_over_peer"]["mpi"]["out"] == 0.25);
  const char* words[] = {"/some/folder/fccl-perf", "--ranks", "2", "--json", "/else/where.json", "--pin", "--json=x"};
  CHECK(commandText(7, words) == "fccl-perf --ranks 2 --pin");
}

TEST_CASE("perf: goals are met at their limit and missed above", "[perf]") {
  CHECK(hostGoals(2).size() == 10);
  CHECK(hostGoals(4).size() == 2);
  CHECK(hostGoals(8).size() == 2);
  CHECK_THROWS_AS(hostGoals(3), std::invalid_argument);
  CHECK(casesOf(hostGoals(2)).size() == 7);

  const Row row = exampleRow();
  CHECK(contains(goalsText({{row.c, "mpi", 0.25}}, {row}), "MET"));
  CHECK(contains(goalsText({{row.c, "mpi", 0.25}}, {row}), "1 of 1 goals met"));
  CHECK(contains(goalsText({{row.c, "mpi", 0.24}}, {row}), "MISSED"));
  CHECK(goalsJson({{row.c, "mpi", 0.24}}, {row})[0]["met"] == false);
}

TEST_CASE("perf: sizes and lists of the command line", "[perf]") {
  CHECK(bytesOfText("64") == 64);
  CHECK(bytesOfText("16K") == 16384);
  CHECK(bytesOfText("2G") == size_t{2} << 30);
  for (const char* bad : {"", "K", "0", "-1", "16KB", "1.5M", "99999999999999999999", "18014398509481984K"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(bytesOfText(bad), std::invalid_argument);
  }
  CHECK(textOfBytes(16384) == "16 KiB");
  CHECK(textOfBytes(1000) == "1000 B");
  CHECK(tokensBySize(4, 64, 4, 4) == std::vector<int64_t>{1, 4, 16});
  CHECK(tokensBySize(4, 64, 4, 1024) == std::vector<int64_t>{1});

  const Options sizes = optionsOf({"-b", "16K", "-e", "1M", "-f", "8"});
  REQUIRE(sizes.cases.size() == 3);
  CHECK(sizes.cases[2].bytes() == 1U << 20);
  CHECK(sizes.cases[0].dtype == fcclFloat32);
  const Options fused = optionsOf({"--pattern", "residual_rms_norm", "--tokens", "1,64", "--hidden", "4096"});
  REQUIRE(fused.cases.size() == 2);
  CHECK(fused.cases[1].tokens == 64);
  CHECK(fused.cases[1].dtype == fcclBfloat16);
  CHECK(optionsOf({"--pattern", "all", "--tokens", "1"}).cases.size() == 7);
  CHECK(optionsOf({"--compare", "mpi", "--compare", "unfused"}).compareUnfused);
  CHECK(optionsOf({"--suite", "host-goals"}).compareMpi);
  CHECK(optionsOf({"--suite", "host-goals"}).measure.repeatChanged == 3);
  CHECK(optionsOf({"--suite", "host-goals", "--repeat-changed", "0"}).measure.repeatChanged == 0);
  CHECK(optionsOf({}).measure.repeatChanged == 0);

  std::string text;
  CHECK(statusOf({"--device", "cuda", "--compare", "mpi"}, &text) == 2);
  CHECK(contains(text, "--device cuda has no --compare mpi"));
  CHECK(statusOf({"--tokens", "1099511627776", "--hidden", "1099511627776"}, &text) == 2);
  CHECK(contains(text, "2^40"));
  CHECK(statusOf({"--pattern", "nonsense"}, &text) == 2);
  CHECK(contains(text, "--pattern is nonsense; it can be all_reduce, "));
  CHECK(statusOf({"--pattern", "rms_norm", "--op", "max"}) == 2);
  CHECK(statusOf({"-b", "1M", "-e", "1K"}) == 2);
  CHECK(statusOf({"--ranks", "0"}) == 2);
  CHECK(statusOf({"--help"}) == 0);
}

TEST_CASE("command lines: every name is understood as it is printed, in capitals and in its short forms", "[perf]") {
  for (const fcclFusionPattern_t pattern : allPatterns()) CHECK(patternOf(nameOf(pattern)) == pattern);
  CHECK(patternOf("RESIDUAL_RMS_NORM_OUT_QUANT_NVFP4") == fcclPatternResidualRmsNormOutQuantNvfp4);
  CHECK(patternOf("residual_rms_norm_fp8") == fcclPatternResidualRmsNormQuantFp8);
  CHECK(patternOf("plain") == fcclPatternAllReduce);
  for (int number = fcclInt8; number <= fcclBfloat16; number++) {
    const auto dtype = static_cast<fcclDataType_t>(number);
    CHECK(dtypeOf(nameOf(dtype)) == dtype);
  }
  CHECK(dtypeOf("bf16") == fcclBfloat16);
  CHECK(dtypeOf("int") == fcclInt32);
  CHECK(nameOf(fcclFloat16) == "half");
  CHECK(opOf("avg") == fcclAvg);
  for (const fcclStrategy_t strategy : {fcclStrategyAuto, fcclStrategyLowPrecision, fcclStrategyNcclSymmetric}) {
    CHECK(strategyOf(nameOf(strategy)) == strategy);
  }
  CHECK(strategyOf("MIN_LATENCY") == fcclStrategyMinLatency);
  for (const char* bad : {"", "quant", "?"}) {
    CHECK_THROWS_AS(patternOf(bad), std::invalid_argument);
    CHECK_THROWS_AS(dtypeOf(bad), std::invalid_argument);
    CHECK_THROWS_AS(opOf(bad), std::invalid_argument);
    CHECK_THROWS_AS(strategyOf(bad), std::invalid_argument);
  }
}

TEST_CASE("perf: the reference formats know their codes and ties", "[perf]") {
  for (int code = 0; code < 256; code++) {
    const auto byte = static_cast<uint8_t>(code);
    if ((code & 0x7f) != 0x7f) CHECK(referenceE4m3(valueOfE4m3(byte)) == byte);
  }
  for (uint8_t code = 0; code < 16; code++) CHECK(referenceE2m1(valueOfE2m1(code)) == code);
  CHECK(valueOfE4m3(0x7e) == 448);
  CHECK(valueOfE4m3(0x01) == std::ldexp(1.0, -9));
  CHECK(referenceE4m3(1e9) == 0x7e);
  CHECK(referenceE4m3(17) == referenceE4m3(16));  // 16, 18: the tie goes to the even code
  CHECK(referenceE4m3(19) == referenceE4m3(20));
  CHECK(referenceE2m1(5) == 6);
  CHECK(referenceE2m1(2.5) == 4);
  CHECK(referenceE2m1(-3.5) == 14);
}

TEST_CASE("perf: the separate epilogue is right in every instruction set, pattern, type and width", "[perf]") {
  for (const EpilogueLoops* loops : allEpilogueLoops()) {
    for (const fcclFusionPattern_t pattern : allPatterns()) {
      for (const fcclDataType_t dtype : {fcclFloat32, fcclFloat16, fcclBfloat16}) {
        for (const int64_t hidden : {int64_t{16}, int64_t{48}, int64_t{1040}, int64_t{77}}) {
          Case c;
          c.pattern = pattern;
          c.dtype = dtype;
          c.tokens = 5;
          c.hidden = hidden;
          if (!c.fused() || (traitsOf(pattern).nvfp4 && hidden % 16 != 0)) continue;
          CAPTURE(loops->isa, describe(c));
          EpilogueOnly variant(c, 3, *loops);
          variant.run();
          CHECK(countWrong(c, 3, 7, variant) == 0);
        }
      }
    }
  }
}

TEST_CASE("perf: the check finds one wrong element in any output", "[perf]") {
  Case c;
  c.pattern = fcclPatternResidualRmsNormOutQuantNvfp4;
  c.dtype = fcclBfloat16;
  c.tokens = 3;
  c.hidden = 64;
  EpilogueOnly variant(c, 2, epilogueLoops());
  variant.run();
  REQUIRE(countWrong(c, 2, 7, variant) == 0);
  const Buffers& buffers = variant.buffers();
  const auto spoil = [&](void* output, size_t at) {
    uint8_t& byte = static_cast<uint8_t*>(output)[at];
    const uint8_t kept = byte;
    byte ^= 0x41;
    const long long wrong = countWrong(c, 2, 7, variant);
    byte = kept;
    return wrong;
  };
  CHECK(spoil(buffers.residualOut, 2 * 130 + 1) == 1);
  CHECK(spoil(buffers.normOut, 2 * 70 + 1) >= 1);
  CHECK(spoil(buffers.quantOut, 95) >= 1);
  CHECK(spoil(buffers.scaleOut, scaleOffset(fcclScaleSwizzled128x4, 2, 3, 4)) >= 1);
  CHECK(spoil(buffers.scaleOut, buffers.scaleBytes - 1) == 1);  // padding
  CHECK(countWrong(c, 2, 8, variant) > 0);                      // the outputs of another call
  CHECK(countWrong(c, 3, 7, variant) > 0);                      // a rank too few
}

TEST_CASE("perf: 16-bit conversions and operators agree with plain C++ in every instruction set", "[perf]") {
  for (const EpilogueLoops* loops : allEpilogueLoops()) {
    CAPTURE(loops->isa);
    for (const fcclDataType_t dtype : {fcclFloat16, fcclBfloat16}) {
      std::vector<uint16_t> all(65536);
      for (size_t i = 0; i < all.size(); i++) all[i] = static_cast<uint16_t>(i);
      std::vector<float> wide(all.size());
      std::vector<uint16_t> back(all.size());
      loops->widen(dtype, all.data(), wide.data(), all.size());
      loops->narrow(dtype, wide.data(), 1.0f, back.data(), back.size());
      int wrong = 0;
      for (size_t i = 0; i < all.size(); i++) {
        // NaNs need not keep their payload, and the BF16 instruction flushes subnormals.
        const bool flushed = dtype == fcclBfloat16 && (i & 0x7f80) == 0 && (back[i] & 0x7fff) == 0;
        if (std::isnan(wide[i]) || flushed) continue;
        wrong += back[i] == all[i] ? 0 : 1;
      }
      CHECK(wrong == 0);
    }
    const std::vector<float> values = {1.0f + 1.0f / 256, 1.0f + 3.0f / 256, 65519.0f, -2.0f};
    std::vector<uint16_t> rounded(values.size());
    loops->narrow(fcclBfloat16, values.data(), 1.0f, rounded.data(), rounded.size());
    CHECK(rounded == std::vector<uint16_t>{0x3f80, 0x3f82, 0x4780, 0xc000});
    loops->narrow(fcclFloat16, values.data(), 1.0f, rounded.data(), rounded.size());
    CHECK(rounded == std::vector<uint16_t>{0x3c04, 0x3c0c, 0x7bff, 0xc000});

    std::vector<uint16_t> left(37, 0x4000);         // bf16 2.0
    const std::vector<uint16_t> right(37, 0xbf80);  // bf16 -1.0
    const auto combined = [&](fcclRedOp_t op) {
      std::vector<uint16_t> result = left;
      loops->combine(fcclBfloat16, op, right.data(), result.data(), result.size());
      for (const uint16_t value : result) CHECK(value == result[0]);
      return result[0];
    };
    CHECK(combined(fcclSum) == 0x3f80);
    CHECK(combined(fcclProd) == 0xc000);
    CHECK(combined(fcclMax) == 0x4000);
    CHECK(combined(fcclMin) == 0xbf80);
  }
}

}  // namespace fccl::perf
#endif
