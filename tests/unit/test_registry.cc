// The registry of strategies: which row AUTO takes for which shape, reasons, and the arithmetic of chunks.
#include <fmt/format.h>

#include <cmath>
#include <random>
#include <set>
#include <string>

#include "kernels/fp8_wire.h"
#include "tests/support/catch.h"
#include "tuner/chunking.h"
#include "tuner/patterns.h"
#include "tuner/registry.h"
#include "tuner/strategies.h"

using namespace fccl;
using host::Protocol;
using host::Wire;

namespace {

constexpr double kNear = 60;
constexpr double kFar = 250;

Facts factsOf(int ranks, double flagNanoseconds = kNear, size_t slotBytes = 256 << 10) {
  const host::MemoryLayout layout = host::makeLayout(ranks, slotBytes);
  Facts facts;
  facts.ranks = ranks;
  facts.cores = 64;
  facts.slotBytes = layout.slotBytes;
  facts.lamportSlotBytes = layout.lamportSlotBytes;
  facts.flagNanoseconds = flagNanoseconds;
  facts.cacheBytes = 16 << 20;
  facts.simd = host::bestSimd();
  return facts;
}

Query normQuery(int64_t rows, int64_t cols, fcclDataType_t dtype = fcclBfloat16) {
  Query query;
  query.dtype = dtype;
  query.norm = true;
  query.outputsAligned = true;
  query.rows = rows;
  query.cols = cols;
  return query;
}

Query plainQuery(int64_t count, fcclDataType_t dtype = fcclFloat32, fcclRedOp_t op = fcclSum) {
  Query query;
  query.dtype = dtype;
  query.op = op;
  query.outputsAligned = true;
  query.rows = 1;
  query.cols = count;
  return query;
}

std::string chosen(const Query& query, const Facts& facts) { return chooseStrategy(query, facts).name; }

bool isSentence(const Reason& reason) {
  return reason.size() > 20 && reason.back() == '.' && reason.find(' ') != std::string::npos;
}

}  // namespace

TEST_CASE("registry: every strategy has one row", "[registry]") {
  std::set<int> ids;
  std::set<std::string> names;
  for (const StrategyRow& row : strategies()) {
    INFO(row.name);
    CHECK(ids.insert(row.id).second);
    CHECK(names.insert(row.name).second);
    CHECK(findStrategy(row.id)->name == row.name);
    CHECK(std::string(row.mechanism).size() > 20);
  }
  CHECK(ids == std::set<int>{fcclStrategyOneshot, fcclStrategyTwoshot, fcclStrategyMinLatency, fcclStrategyUb,
                             fcclStrategyNccl, fcclStrategyNcclSymmetric, fcclStrategyLowPrecision});
  // AUTO is the choice among rows, not a row.
  CHECK(findStrategy(fcclStrategyAuto) == nullptr);
}

TEST_CASE("registry: what AUTO takes", "[registry]") {
  struct Expected {
    int64_t tokens;
    int64_t hidden;
    fcclDataType_t dtype;
    const char* near2;
    const char* far2;
    const char* ranks4;
  };
  const Expected table[] = {
      {1, 2880, fcclBfloat16, "ONESHOT", "ONESHOT", "ONESHOT"},
      {1, 7168, fcclBfloat16, "ONESHOT", "ONESHOT", "ONESHOT"},
      {1, 16384, fcclBfloat16, "ONESHOT", "ONESHOT", "ONESHOT"},
      {1, 16384, fcclFloat32, "ONESHOT", "ONESHOT", "TWOSHOT"},
      {7, 2880, fcclBfloat16, "ONESHOT", "ONESHOT", "TWOSHOT"},
      {8, 2880, fcclBfloat16, "TWOSHOT", "ONESHOT", "TWOSHOT"},
      {8, 2880, fcclFloat32, "TWOSHOT", "ONESHOT", "TWOSHOT"},
      {64, 2880, fcclFloat16, "TWOSHOT", "ONESHOT", "TWOSHOT"},
      {64, 7168, fcclBfloat16, "TWOSHOT", "ONESHOT", "TWOSHOT"},
      {64, 16384, fcclFloat32, "TWOSHOT", "ONESHOT", "TWOSHOT"},
      {2048, 2880, fcclBfloat16, "TWOSHOT", "ONESHOT", "TWOSHOT"},
      {2048, 7168, fcclFloat16, "TWOSHOT", "ONESHOT", "TWOSHOT"},
      {2048, 16384, fcclBfloat16, "TWOSHOT", "ONESHOT", "TWOSHOT"},
  };
  for (const Expected& e : table) {
    INFO(fmt::format("{} x {} of {}", e.tokens, e.hidden, host::dtypeName(e.dtype)));
    const Query query = normQuery(e.tokens, e.hidden, e.dtype);
    CHECK(chosen(query, factsOf(2, kNear)) == e.near2);
    CHECK(chosen(query, factsOf(2, kFar)) == e.far2);
    CHECK(chosen(query, factsOf(4)) == e.ranks4);
    CHECK(chosen(query, factsOf(1)) == "ONESHOT");
  }
}

TEST_CASE("registry: two HOST ranks far from each other quantize to NVFP4 once where nothing else is gathered",
          "[registry]") {
  const auto quantized = [](fcclFusionPattern_t pattern, int64_t rows, int64_t cols) {
    Query query = normQuery(rows, cols);
    query.pattern = pattern;
    query.quant = kPatterns[static_cast<size_t>(pattern)].quant;
    return chosen(query, factsOf(2, kFar));
  };
  for (const int64_t cols : {4096, 8192}) {
    const int64_t nvfp4Rows = (96 << 10) / (2 * cols);
    CHECK(quantized(fcclPatternResidualRmsNormQuantNvfp4, nvfp4Rows, cols) == "TWOSHOT");
    CHECK(quantized(fcclPatternResidualRmsNormQuantNvfp4, nvfp4Rows - 1, cols) == "ONESHOT");
    CHECK(quantized(fcclPatternResidualRmsNormQuantFp8, 1024, cols) == "ONESHOT");
    CHECK(quantized(fcclPatternResidualRmsNormOutQuantNvfp4, 1024, cols) == "ONESHOT");
    CHECK(quantized(fcclPatternResidualRmsNormOutQuantFp8, 1024, cols) == "ONESHOT");
    CHECK(quantized(fcclPatternResidualRmsNorm, 1024, cols) == "ONESHOT");
  }
}

TEST_CASE("registry: bytes decide, not elements", "[registry]") {
  for (const int ranks : {2, 4, 8}) {
    for (const double flag : {kNear, kFar}) {
      for (const int64_t bytes : {1 << 10, 16 << 10, 32 << 10, 48 << 10, 1 << 20, 64 << 20}) {
        const Facts facts = factsOf(ranks, flag);
        const Query fp32 = plainQuery(bytes / 4, fcclFloat32);
        const Query bf16 = plainQuery(bytes / 2, fcclBfloat16);
        INFO(fmt::format("{} ranks, {} ns, {} bytes", ranks, flag, bytes));
        CHECK(chosen(fp32, facts) == chosen(bf16, facts));
        CHECK(chosen(fp32, facts) == chosen(plainQuery(bytes, fcclInt8), facts));
        const Plan a = chooseStrategy(fp32, facts).plan(fp32, facts);
        const Plan b = chooseStrategy(bf16, facts).plan(bf16, facts);
        CHECK(a.protocol == b.protocol);
        CHECK(a.wire == b.wire);
        CHECK(a.shape.streamStaging == b.shape.streamStaging);
      }
    }
  }
}

TEST_CASE("registry: ONESHOT's wire", "[registry]") {
  const auto wireOf = [](const Query& query, const Facts& facts) {
    return findStrategy(fcclStrategyOneshot)->plan(query, facts).wire;
  };
  CHECK(wireOf(plainQuery((32 << 10) / 4), factsOf(2, kNear)) == Wire::kLamport);
  CHECK(wireOf(plainQuery((32 << 10) / 4 + 1), factsOf(2, kNear)) == Wire::kFlags);
  CHECK(wireOf(plainQuery((16 << 10) / 4 - 1), factsOf(2, kFar)) == Wire::kLamport);
  CHECK(wireOf(plainQuery((16 << 10) / 4), factsOf(2, kFar)) == Wire::kFlags);
  CHECK(wireOf(normQuery(1, 8192), factsOf(2, kFar)) == Wire::kLamport);
  CHECK(wireOf(normQuery(64, 8192), factsOf(2, kFar)) == Wire::kFlags);
  CHECK(wireOf(plainQuery(16), factsOf(3)) == Wire::kFlags);
  // What Lamport has no kernel for.
  CHECK(wireOf(plainQuery(16, fcclFloat32, fcclMax), factsOf(2)) == Wire::kFlags);
  CHECK(wireOf(plainQuery(16, fcclInt32), factsOf(2)) == Wire::kFlags);
}

TEST_CASE("registry: TWOSHOT without a share for everybody is ONESHOT", "[registry]") {
  const StrategyRow& row = *findStrategy(fcclStrategyTwoshot);
  const auto protocolOf = [&](const Query& query, const Facts& facts) { return row.plan(query, facts).protocol; };
  for (const int ranks : {2, 3, 8, 72}) {
    INFO(ranks << " ranks");
    CHECK(protocolOf(normQuery(ranks - 1, 64), factsOf(ranks)) == Protocol::kOneshot);
    CHECK(protocolOf(normQuery(ranks, 64), factsOf(ranks)) == Protocol::kTwoshot);
    CHECK(protocolOf(plainQuery(int64_t{64} * ranks - 1), factsOf(ranks)) == Protocol::kOneshot);
    CHECK(protocolOf(plainQuery(int64_t{64} * ranks), factsOf(ranks)) == Protocol::kTwoshot);
  }
  CHECK(protocolOf(normQuery(64, 64), factsOf(1)) == Protocol::kOneshot);
  // A row per owner does not fit the smallest slot.
  CHECK(protocolOf(normQuery(64, 8192), factsOf(2, kNear, 4096)) == Protocol::kOneshot);
  CHECK(row.plan(normQuery(1, 64), factsOf(2)).strategy == fcclStrategyTwoshot);
}

TEST_CASE("registry: LOWPRECISION without a share for everybody is ONESHOT", "[registry]") {
  const StrategyRow& row = *findStrategy(fcclStrategyLowPrecision);
  const auto protocolOf = [&](const Query& query, const Facts& facts) { return row.plan(query, facts).protocol; };
  for (const int ranks : {2, 3, 8, 16}) {
    INFO(ranks << " ranks");
    CHECK(protocolOf(normQuery(ranks - 1, 64), factsOf(ranks)) == Protocol::kOneshot);
    CHECK(protocolOf(normQuery(ranks, 7), factsOf(ranks)) == Protocol::kLowPrecision);
    CHECK(protocolOf(plainQuery(int64_t{64} * ranks - 1), factsOf(ranks)) == Protocol::kOneshot);
    CHECK(protocolOf(plainQuery(int64_t{64} * ranks), factsOf(ranks)) == Protocol::kLowPrecision);
  }
  CHECK(protocolOf(normQuery(64, 64), factsOf(1)) == Protocol::kOneshot);
  CHECK(row.plan(normQuery(1, 64), factsOf(2)).strategy == fcclStrategyLowPrecision);
  CHECK(row.plan(normQuery(64, 64), factsOf(2)).strategy == fcclStrategyLowPrecision);
  Facts cuda = factsOf(2);
  cuda.device = fcclDeviceCuda;
  CHECK(protocolOf(normQuery(1, 64), cuda) == Protocol::kLowPrecision);
  CHECK(row.workspace(normQuery(64, 8192), cuda) <
        findStrategy(fcclStrategyTwoshot)->workspace(normQuery(64, 8192), cuda));
  cuda.ranks = 1;  // nobody to send anything to
  CHECK(protocolOf(normQuery(64, 64), cuda) == Protocol::kOneshot);
}

TEST_CASE("registry: LOWPRECISION is for sums of small floats", "[registry]") {
  const StrategyRow& row = *findStrategy(fcclStrategyLowPrecision);
  for (const fcclDataType_t dtype : {fcclFloat32, fcclFloat16, fcclBfloat16}) {
    CHECK(row.eligible(plainQuery(100, dtype), factsOf(2)).empty());
  }
  for (const Query& query : {plainQuery(100, fcclFloat64), plainQuery(100, fcclInt8),
                             plainQuery(100, fcclFloat32, fcclMax), plainQuery(100, fcclFloat32, fcclAvg)}) {
    const Reason reason = row.eligible(query, factsOf(2));
    CHECK(isSentence(reason));
    CHECK(reason.find("sums of fcclFloat32") != std::string::npos);
  }
}

TEST_CASE("registry: MIN_LATENCY", "[registry]") {
  const StrategyRow& row = *findStrategy(fcclStrategyMinLatency);
  const auto protocolOf = [&](const Query& query) { return row.plan(query, factsOf(4)).protocol; };
  CHECK(protocolOf(normQuery(128, 2880)) == Protocol::kOneshot);
  CHECK(protocolOf(normQuery(129, 2880)) == Protocol::kTwoshot);
  CHECK(protocolOf(normQuery(129, 3)) == Protocol::kOneshot);
  CHECK(protocolOf(plainQuery((256 << 10) / 4)) == Protocol::kOneshot);
  CHECK(protocolOf(plainQuery((256 << 10) / 4 + 1)) == Protocol::kTwoshot);
  CHECK(row.plan(normQuery(129, 2880), factsOf(4)).strategy == fcclStrategyMinLatency);
}

TEST_CASE("registry: windows", "[registry]") {
  const StrategyRow& row = *findStrategy(fcclStrategyUb);
  for (const bool norm : {false, true}) {
    for (const bool input : {false, true}) {
      for (const bool output : {false, true}) {
        Query query = norm ? normQuery(4, 2880) : plainQuery(4096);
        query.inputInWindow = input;
        query.outputInWindow = output;
        const bool expected = input && (output || norm);
        INFO(fmt::format("norm {}, input {}, output {}", norm, input, output));
        const Reason reason = row.eligible(query, factsOf(2));
        CHECK(reason.empty() == expected);
        CHECK((chosen(query, factsOf(2)) == "UB") == expected);
        if (!reason.empty()) CHECK(isSentence(reason));
        if (expected) {
          CHECK(row.workspace(query, factsOf(2)) == 0);
          CHECK(row.plan(query, factsOf(2)).protocol == (norm ? Protocol::kWindowOneshot : Protocol::kWindowTwoshot));
        }
      }
    }
  }
}

TEST_CASE("registry: windows on CUDA: UB as on HOST by its name, by AUTO where it was measured to be faster",
          "[registry]") {
  const StrategyRow& row = *findStrategy(fcclStrategyUb);
  Facts facts = factsOf(2);
  facts.device = fcclDeviceCuda;
  for (const bool norm : {false, true}) {
    Query query = norm ? normQuery(4, 2880) : plainQuery(4096);
    const Reason noInput = row.eligible(query, facts);
    CHECK(isSentence(noInput));
    CHECK(noInput.find("the input in a window") != std::string::npos);
    query.inputInWindow = true;
    const Reason noOutput = row.eligible(query, facts);
    CHECK(noOutput.empty() == norm);
    if (!norm) CHECK(noOutput.find("the output of a call without norm in a window") != std::string::npos);
    query.outputInWindow = !norm;
    query.windowsAligned = true;
    CHECK(row.eligible(query, facts).empty());
    CHECK(row.workspace(query, facts) == 0);
    const Plan plan = row.plan(query, facts);
    CHECK(plan.protocol == (norm ? Protocol::kWindowOneshot : Protocol::kWindowTwoshot));
    CHECK(plan.windowsAligned);
    CHECK(plan.kernel == nullptr);
    // Few tokens: the barriers cost more than the staging that they save.
    facts.ranksPerDevice = 2;
    CHECK(chosen(query, facts) == "ONESHOT");
    Query large = norm ? normQuery(512, 8192) : plainQuery(1 << 20);
    CHECK(chosen(large, facts) == "ONESHOT");
    large.inputInWindow = true;
    large.outputInWindow = !norm;
    CHECK(chosen(large, facts) == "UB");
    (norm ? large.rows : large.cols)--;
    CHECK(chosen(large, facts) == "ONESHOT");
    large.rows *= 100;
    CHECK(chosen(large, facts) == "UB");
    facts.ranksPerDevice = 1;
    CHECK(chosen(large, facts) == "ONESHOT");
  }
}

TEST_CASE("registry: NCCL's strategies need a GPU, and NCCL beside the communicator", "[registry]") {
  const StrategyRow& plain = *findStrategy(fcclStrategyNccl);
  const StrategyRow& symmetric = *findStrategy(fcclStrategyNcclSymmetric);
  const Query query = normQuery(64, 8192);
  Facts facts = factsOf(2);
  for (const StrategyRow* row : {&plain, &symmetric}) {
    const Reason onHost = row->eligible(query, facts);
    CHECK(isSentence(onHost));
    CHECK(onHost.find("on HOST") != std::string::npos);
  }
  facts.device = fcclDeviceCuda;
  for (const StrategyRow* row : {&plain, &symmetric}) {
    const Reason notAsked = row->eligible(query, facts);
    CHECK(isSentence(notAsked));
    CHECK(notAsked.find("FCCL_NCCL=1") != std::string::npos);
  }
  facts.noNccl = "there is no NCCL here, says the loader.";
  CHECK(plain.eligible(query, facts) == facts.noNccl);
  CHECK(symmetric.eligible(query, facts) == facts.noNccl);
  facts.noNccl.clear();
  CHECK(plain.eligible(query, facts).empty());
  CHECK(symmetric.eligible(query, facts) == facts.noNcclWindow);
  CHECK(isSentence(facts.noNcclWindow));
  facts.noNcclWindow.clear();
  CHECK(symmetric.eligible(query, facts).empty());
  CHECK(plain.plan(query, facts).strategy == fcclStrategyNccl);
  CHECK(symmetric.plan(query, facts).strategy == fcclStrategyNcclSymmetric);
  CHECK(plain.workspace(query, facts) == 0);
  // AUTO has kernels of its own for this.
  CHECK_FALSE(isNccl(chooseStrategy(query, facts).id));
}

TEST_CASE("registry: what is staged in NCCL's window", "[registry]") {
  CHECK(ncclStagingBytes(2, 2) == 293'487);
  CHECK(ncclStagingBytes(8, 4) == 467'300);
  CHECK(ncclStagingBytes(31, 2) == 4'274);
  CHECK(ncclStagingBytes(32, 2) == 0);
  Facts facts = factsOf(2);
  facts.device = fcclDeviceCuda;
  const auto staged = [&](const Query& query) { return kNcclSymmetricRow.plan(query, facts).ncclStaged; };
  CHECK_FALSE(staged(normQuery(17, 8192)));
  CHECK(staged(normQuery(18, 8192)));
  CHECK_FALSE(staged(plainQuery(146'743, fcclBfloat16)));
  CHECK(staged(plainQuery(146'744, fcclBfloat16)));
  CHECK_FALSE(kNcclRow.plan(normQuery(4096, 8192), facts).ncclStaged);
}

TEST_CASE("registry: what CUDA kernels cannot do names NCCL", "[registry]") {
  Facts facts = factsOf(2);
  facts.device = fcclDeviceCuda;
  CHECK(notOnDevice(plainQuery(16, fcclFloat32), facts).empty());
  for (const Query& query : {plainQuery(16, fcclInt32), plainQuery(16, fcclFloat32, fcclMax)}) {
    const Reason reason = notOnDevice(query, facts);
    CHECK(isSentence(reason));
    CHECK(reason.find("FCCL_NCCL=1") != std::string::npos);
  }
  facts.device = fcclDeviceHost;
  CHECK(notOnDevice(plainQuery(16, fcclInt32), facts).empty());
}

TEST_CASE("registry: alignment changes nothing but streaming", "[registry]") {
  // It may differ between ranks, so nothing that ranks must do alike may depend on it.
  for (const int ranks : {2, 4}) {
    for (const double flag : {kNear, kFar}) {
      for (const int64_t rows : {1, 8, 64, 4096}) {
        Query aligned = normQuery(rows, 8192);
        Query other = aligned;
        other.outputsAligned = false;
        const Facts facts = factsOf(ranks, flag);
        const Plan a = chooseStrategy(aligned, facts).plan(aligned, facts);
        const Plan b = chooseStrategy(other, facts).plan(other, facts);
        CHECK(a.strategy == b.strategy);
        CHECK(a.protocol == b.protocol);
        CHECK(a.wire == b.wire);
        CHECK(a.shape.rowsPerChunk == b.shape.rowsPerChunk);
        CHECK(a.shape.colsPerChunk == b.shape.colsPerChunk);
        CHECK(a.shape.streamStaging == b.shape.streamStaging);
        CHECK_FALSE(b.shape.streamOutput);
      }
    }
  }
  CHECK(chooseStrategy(normQuery(4096, 8192), factsOf(2)).plan(normQuery(4096, 8192), factsOf(2)).shape.streamOutput);
}

TEST_CASE("registry: no number of tokens is a step for a fused call", "[registry]") {
  // A cap on tokens, from a flag array or a pool, would show as another strategy or as more chunks per row.
  for (const int ranks : {2, 4, 8}) {
    for (const double flag : {kNear, kFar}) {
      for (const int64_t tokens : {80, 128, 2048, 16'383}) {
        const Facts facts = factsOf(ranks, flag);
        const auto planOf = [&](int64_t rows) {
          const Query query = normQuery(rows, 4096);
          return chooseStrategy(query, facts).plan(query, facts);
        };
        const Plan plan = planOf(tokens);
        const Plan next = planOf(tokens + 1);
        INFO(fmt::format("{} ranks, {} ns, {} tokens", ranks, flag, tokens));
        REQUIRE(plan.kernel != nullptr);
        CHECK(next.kernel == plan.kernel);
        CHECK(next.strategy == plan.strategy);
        CHECK(next.protocol == plan.protocol);
        CHECK(next.wire == plan.wire);
        CHECK(next.shape.rowsPerChunk == plan.shape.rowsPerChunk);
        CHECK(next.shape.colsPerChunk == plan.shape.colsPerChunk);
        CHECK(next.shape.streamStaging == plan.shape.streamStaging);
        CHECK(next.shape.streamOutput == plan.shape.streamOutput);
      }
    }
  }
}

TEST_CASE("registry: chunks of 10000 random shapes fit their slots", "[registry]") {
  std::mt19937_64 random(20261130);
  const auto between = [&](int64_t low, int64_t high) {
    // Spread over the orders of magnitude.
    const double exponent = std::uniform_real_distribution<>(std::log(double(low)), std::log(double(high) + 1))(random);
    return std::min(high, std::max(low, static_cast<int64_t>(std::exp(exponent))));
  };
  const fcclDataType_t plainTypes[] = {fcclInt8,    fcclInt32,   fcclInt64,   fcclFloat16,
                                       fcclFloat32, fcclFloat64, fcclBfloat16};
  const fcclDataType_t normTypes[] = {fcclFloat32, fcclFloat16, fcclBfloat16};
  int twoshots = 0;
  int columnCuts = 0;
  int lowPrecisions = 0;
  std::string wrong;
  for (int i = 0; i < 10'000 && wrong.empty(); i++) {
    const int ranks = static_cast<int>(between(1, 72));
    const Facts facts = factsOf(ranks, i % 2 != 0 ? kNear : kFar, static_cast<size_t>(between(4096, 1 << 20)));
    const bool norm = random() % 2 != 0;
    const Query query = norm ? normQuery(between(1, 20'000), between(1, 40'000), normTypes[random() % 3])
                             : plainQuery(between(1, 1 << 28), plainTypes[random() % 7]);
    const size_t element = host::dtypeBytes(query.dtype);
    const std::string what = fmt::format("{} x {} of {}, {} ranks, slots of {}", query.rows, query.cols,
                                         host::dtypeName(query.dtype), ranks, facts.slotBytes);
    const auto expect = [&](bool good, const char* rule) {
      if (!good) wrong = what + ": " + rule;
    };
    const auto check = [&](const Plan& plan) {
      const host::Shape& shape = plan.shape;
      const bool lamport = plan.wire == Wire::kLamport;
      const size_t slot = lamport ? facts.lamportSlotBytes : facts.slotBytes;
      // What stands in a slot together.
      const auto shares = static_cast<size_t>(plan.protocol == Protocol::kTwoshot && !lamport ? ranks : 1);
      const auto rows = static_cast<size_t>(shape.rowsPerChunk);
      const size_t stride = (static_cast<size_t>(shape.colsPerChunk) * element + 63) / 64 * 64;
      expect(shape.rowsPerChunk >= 1 && shape.colsPerChunk >= 1, "an empty chunk");
      expect(shape.rowsPerChunk <= query.rows && shape.colsPerChunk <= query.cols, "a chunk beyond the call");
      // Every chunk then starts at a multiple of 64 elements, which is 64 bytes at least.
      expect(shape.colsPerChunk == query.cols || shape.colsPerChunk % 64 == 0, "a cut inside a block of 64");
      expect(shape.colsPerChunk == query.cols || shape.rowsPerChunk == 1, "several rows of cut columns");
      expect(!norm || plan.rowScratchBytes >= static_cast<size_t>(query.cols) * element + 63, "too little scratch");
      if (plan.protocol == Protocol::kLowPrecision) {
        const int64_t each = norm ? query.cols : ((shape.colsPerChunk + ranks - 1) / ranks + 63) / 64 * 64;
        expect(!norm || shape.colsPerChunk == query.cols, "LOWPRECISION cuts a row");
        expect(ranks * shape.rowsPerChunk * fp8RowBytes(each) <= static_cast<int64_t>(slot),
               "the shares of all owners beyond the slot");
        lowPrecisions++;
        return;
      }
      if (plan.protocol != Protocol::kTwoshot) {
        expect(plan.protocol != Protocol::kOneshot || rows * stride <= slot, "a chunk beyond its slot");
        columnCuts += norm && shape.colsPerChunk < query.cols;
        return;
      }
      twoshots++;
      if (norm) {
        expect(shape.colsPerChunk == query.cols, "TWOSHOT cuts a row");
        expect(shares * rows * stride <= slot, "the shares of all owners beyond the slot");
        const size_t quant = (static_cast<size_t>(query.cols) + 63) / 64 * 64;
        expect(lamport || rows * (3 * stride + quant) <= slot, "the outputs of a share beyond the slot");
      } else {
        const auto each = static_cast<size_t>((shape.colsPerChunk + ranks - 1) / ranks + 63) / 64 * 64;
        expect(shares * each * element <= slot, "the shares of all owners beyond the slot");
      }
    };
    for (const StrategyRow& row : strategies()) {
      if (!row.eligible(query, facts).empty()) continue;
      const Plan plan = row.plan(query, facts);
      expect(plan.kernel != nullptr, "no kernel");
      check(plan);
    }
    // Whatever a strategy prefers, the other wire must fit as well.
    for (const Wire wire : {Wire::kLamport, Wire::kFlags}) {
      for (const Plan& plan : {planOneshot(query, facts, wire), planTwoshot(query, facts, wire)}) {
        if (plan.kernel != nullptr) check(plan);
      }
    }
  }
  CHECK(wrong == "");
  CHECK(twoshots > 1000);
  CHECK(columnCuts > 100);
  CHECK(lowPrecisions > 1000);
}
