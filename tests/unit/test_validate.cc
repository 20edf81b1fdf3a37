// The internals of argument checking: the table of patterns, overlap rules, sizes. What a caller sees is in
// test_bad_input.cc.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "lib/call_words.h"
#include "lib/overlap.h"
#include "lib/plan_cache.h"
#include "lib/validate.h"
#include "tests/support/catch.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/text.h"
#include "tuner/patterns.h"

using namespace fccl;
using fccl::test::contains;

namespace {

// Arguments that are right for every pattern with a norm, in one block of memory without gaps.
struct Fused {
  static constexpr int64_t kTokens = 4;
  static constexpr int64_t kHidden = 32;
  static constexpr size_t kData = kTokens * kHidden * 2;
  alignas(64) char memory[16 * kData] = {};
  float scale = 1;
  fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;

  explicit Fused(fcclFusionPattern_t pattern) {
    const PatternTraits& traits = kPatterns[pattern];
    const auto part = [&](int i) { return memory + static_cast<size_t>(i) * kData; };
    args.pattern = pattern;
    args.tokens = kTokens;
    args.hidden = kHidden;
    args.input = part(0);
    if (traits.residual) args.residual = part(1);
    if (traits.residual) args.residualOut = part(2);
    if (traits.norm) args.weight = part(3);
    if (traits.normOut) args.normOut = part(4);
    if (!traits.norm) args.reducedOut = part(5);
    if (traits.quant != QuantKind::kNone) args.quantOut = part(6);
    if (traits.quant == QuantKind::kFp8) args.fp8DequantScale = &scale;
    if (traits.quant == QuantKind::kNvfp4) args.nvfp4GlobalScale = &scale;
    if (traits.quant == QuantKind::kNvfp4) args.scaleOut = part(8);
  }

  Status check(fcclDeviceType_t device = fcclDeviceHost) const {
    CheckedCall call;
    return checkAllReduceFused(&args, nullptr, {device}, &call);
  }
};

}  // namespace

TEST_CASE("validate: every pattern's own arguments are right", "[validate]") {
  for (int pattern = 0; pattern < 7; pattern++) {
    Fused fused(static_cast<fcclFusionPattern_t>(pattern));
    INFO(kPatterns[static_cast<size_t>(pattern)].name << ": " << fused.check().message());
    CHECK(fused.check().ok());
  }
}

TEST_CASE("validate: a call without norm becomes one row", "[validate]") {
  Fused plain(fcclPatternAllReduce);
  CheckedCall call;
  REQUIRE(checkAllReduceFused(&plain.args, nullptr, {fcclDeviceHost}, &call).ok());
  CHECK(call.call.rows.rows == 1);
  CHECK(call.call.rows.cols == Fused::kTokens * Fused::kHidden);
  CHECK(call.tokens == Fused::kTokens);
  CHECK(call.hidden == Fused::kHidden);
  CHECK_FALSE(call.norm());

  Fused norm(fcclPatternResidualRmsNormQuantFp8);
  CheckedCall other;
  REQUIRE(checkAllReduceFused(&norm.args, nullptr, {fcclDeviceHost}, &other).ok());
  CHECK(other.call.rows.rows == Fused::kTokens);
  CHECK(other.call.rows.cols == Fused::kHidden);
  CHECK(other.call.rows.quant == QuantKind::kFp8);
  CHECK(other.call.rows.quantScale == &norm.scale);
  CHECK_FALSE(other.call.rows.weightIsFp32);
  CHECK(other.norm());
}

TEST_CASE("validate: no tokens, no pointers", "[validate]") {
  for (int pattern = 0; pattern < 7; pattern++) {
    fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
    args.pattern = static_cast<fcclFusionPattern_t>(pattern);
    args.hidden = 64;
    CheckedCall call;
    CHECK(checkAllReduceFused(&args, nullptr, {fcclDeviceHost}, &call).ok());
    CHECK(call.empty());
  }
  CheckedCall call;
  CHECK(checkAllReduce(nullptr, nullptr, 0, fcclInt8, fcclAvg, nullptr, {fcclDeviceHost}, &call).ok());
  CHECK(call.empty());
}

TEST_CASE("validate: in place is allowed where the header says so", "[validate]") {
  const auto pattern = fcclPatternResidualRmsNormOutQuantFp8;
  {
    Fused fused(pattern);
    fused.args.residualOut = const_cast<void*>(fused.args.residual);
    CHECK(fused.check().ok());
    fused.args.normOut = const_cast<void*>(fused.args.input);
    CHECK(fused.check().ok());
    // Both in the input.
    fused.args.reducedOut = const_cast<void*>(fused.args.input);
    CHECK(contains(fused.check().message(), "normOut"));
    fused.args.normOut = fused.memory + 4 * Fused::kData;
    CHECK(fused.check().ok());
  }
  struct Alias {
    void* fcclFusedArgs_t::*output;
    const void* fcclFusedArgs_t::*input;
    const char* name;
  };
  const Alias forbidden[] = {
      {&fcclFusedArgs_t::normOut, &fcclFusedArgs_t::residual, "normOut"},
      {&fcclFusedArgs_t::residualOut, &fcclFusedArgs_t::input, "residualOut"},
      {&fcclFusedArgs_t::reducedOut, &fcclFusedArgs_t::residual, "reducedOut"},
      {&fcclFusedArgs_t::normOut, &fcclFusedArgs_t::weight, "normOut"},
      {&fcclFusedArgs_t::quantOut, &fcclFusedArgs_t::input, "quantOut"},
      {&fcclFusedArgs_t::quantOut, &fcclFusedArgs_t::residual, "quantOut"},
  };
  for (const Alias& alias : forbidden) {
    Fused fused(pattern);
    fused.args.*alias.output = const_cast<void*>(fused.args.*alias.input);
    INFO(alias.name);
    CHECK(fused.check().code() == fcclInvalidArgument);
    CHECK(contains(fused.check().message(), alias.name));
  }
}

TEST_CASE("validate: overlap by one element is found, neighbours are not", "[validate]") {
  void* fcclFusedArgs_t::*const outputs[] = {&fcclFusedArgs_t::residualOut, &fcclFusedArgs_t::normOut,
                                             &fcclFusedArgs_t::quantOut, &fcclFusedArgs_t::scaleOut};
  for (const auto output : outputs) {
    Fused fused(fcclPatternResidualRmsNormOutQuantNvfp4);
    const bool bytes = output == &fcclFusedArgs_t::quantOut || output == &fcclFusedArgs_t::scaleOut;
    char* const inputEnd = fused.memory + Fused::kData;
    // Room for the longest output right behind the input.
    fused.args.residual = inputEnd + 11 * Fused::kData;
    fused.args.residualOut = inputEnd + 12 * Fused::kData;
    fused.args.*output = inputEnd;
    CHECK(fused.check().ok());
    fused.args.*output = inputEnd - (bytes ? 1 : 2);
    CHECK(contains(fused.check().message(), "input"));
  }
  // The exact size of the scales: 4 rows of 2 blocks, padded to 128 x 4.
  Fused fused(fcclPatternResidualRmsNormOutQuantNvfp4);
  char* const start = static_cast<char*>(fused.args.scaleOut);
  fused.args.residualOut = start + 512;
  CHECK(fused.check().ok());
  fused.args.residualOut = start + 510;
  CHECK(contains(fused.check().message(), "residualOut"));
  fused.args.scaleLayout = fcclScaleLinear;
  fused.args.residualOut = start + 8;
  CHECK(fused.check().ok());
}

TEST_CASE("validate: sizes at the limits", "[validate]") {
  Fused fused(fcclPatternRmsNorm);
  fused.args.tokens = INT64_MAX / 2;
  fused.args.hidden = 2;
  CHECK(contains(fused.check().message(), "tokens"));
  fused.args.tokens = INT64_MAX / 2 / Fused::kHidden + 1;
  fused.args.hidden = Fused::kHidden;
  CHECK(contains(fused.check().message(), "tokens"));

  size_t bytes = 0;
  CHECK(quantScaleBytes(INT64_MAX, 16, fcclPatternResidualRmsNormQuantNvfp4, fcclScaleSwizzled128x4, &bytes).code() ==
        fcclInvalidArgument);
  CHECK(quantScaleBytes(1, INT64_MAX / 16 * 16, fcclPatternResidualRmsNormQuantNvfp4, fcclScaleSwizzled128x4, &bytes)
            .code() == fcclInvalidArgument);
  REQUIRE(quantScaleBytes(129, 2880, fcclPatternResidualRmsNormQuantNvfp4, fcclScaleSwizzled128x4, &bytes).ok());
  CHECK(bytes == size_t{256} * 180);
  REQUIRE(quantScaleBytes(9, 48, fcclPatternResidualRmsNormOutQuantNvfp4, fcclScaleSwizzled8x4, &bytes).ok());
  CHECK(bytes == size_t{16} * 4);
  REQUIRE(quantScaleBytes(9, 48, fcclPatternResidualRmsNormOutQuantNvfp4, fcclScaleLinear, &bytes).ok());
  CHECK(bytes == 27);
  REQUIRE(quantScaleBytes(9, 47, fcclPatternResidualRmsNormQuantFp8, fcclScaleLinear, &bytes).ok());
  CHECK(bytes == 0);
}

TEST_CASE("validate: an input that has been pushed", "[validate]") {
  for (int pattern = 0; pattern < 7; pattern++) {
    Fused fused(static_cast<fcclFusionPattern_t>(pattern));
    CheckedCall call;
    REQUIRE(checkAllReduceFused(&fused.args, nullptr, {fcclDeviceCuda}, &call).ok());
    CHECK_FALSE(call.call.rows.inputPushed);
    fused.args.inputPushed = 1;
    REQUIRE(checkAllReduceFused(&fused.args, nullptr, {fcclDeviceCuda}, &call).ok());
    CHECK(call.call.rows.inputPushed);
    fused.args.strategy = fcclStrategyOneshot;
    CHECK(fused.check(fcclDeviceCuda).ok());
    CHECK(contains(fused.check(fcclDeviceHost).message(), "HOST"));
    for (const fcclStrategy_t strategy : {fcclStrategyTwoshot, fcclStrategyMinLatency, fcclStrategyUb}) {
      fused.args.strategy = strategy;
      const Status status = fused.check(fcclDeviceCuda);
      CHECK(status.code() == fcclInvalidArgument);
      CHECK(contains(status.message(), strategyName(strategy)));
      CHECK(contains(status.message(), "inputPushed"));
    }
  }
  // Rows of whole packs only.
  Fused fused(fcclPatternRmsNorm);
  fused.args.inputPushed = 1;
  fused.args.hidden = 24;
  CHECK(fused.check(fcclDeviceCuda).ok());
  fused.args.hidden = 28;
  CHECK(contains(fused.check(fcclDeviceCuda).message(), "hidden is 28"));
  fused.args.inputPushed = 0;
  CHECK(fused.check(fcclDeviceCuda).ok());
}

TEST_CASE("validate: a residual that is sharded", "[validate]") {
  for (int pattern = 0; pattern < 7; pattern++) {
    const bool residual = pattern >= fcclPatternResidualRmsNorm;
    Fused fused(static_cast<fcclFusionPattern_t>(pattern));
    if (residual) fused.args.reducedOut = nullptr;
    fused.args.residualSharded = 1;
    CHECK(fused.check(fcclDeviceHost).ok() == residual);
    if (!residual) {
      CHECK(contains(fused.check(fcclDeviceHost).message(), "residualSharded is 1; pattern"));
      continue;
    }
    fused.args.strategy = fcclStrategyTwoshot;
    CHECK(fused.check(fcclDeviceCuda).ok());
    for (const fcclStrategy_t strategy : {fcclStrategyOneshot, fcclStrategyMinLatency, fcclStrategyNccl}) {
      fused.args.strategy = strategy;
      const Status status = fused.check(fcclDeviceCuda);
      CHECK(status.code() == fcclInvalidArgument);
      CHECK(contains(status.message(), strategyName(strategy)));
    }
    fused.args.strategy = fcclStrategyAuto;
    fused.args.inputPushed = 1;
    CHECK(contains(fused.check(fcclDeviceCuda).message(), "inputPushed and residualSharded"));
    fused.args.inputPushed = 0;
    fused.args.reducedOut = fused.args.residualOut;
    CHECK(contains(fused.check(fcclDeviceCuda).message(), "reducedOut"));
    fused.args.reducedOut = nullptr;

    // A rank without tokens has no residual; one with some has so much of it.
    CheckedCall call;
    fused.args.tokens = 2;
    fused.args.residual = nullptr;
    fused.args.residualOut = nullptr;
    CHECK(checkAllReduceFused(&fused.args, nullptr, {fcclDeviceHost, 2, 3}, &call).ok());
    CHECK(contains(checkAllReduceFused(&fused.args, nullptr, {fcclDeviceHost, 1, 3}, &call).message(), "residual is"));
  }
}

TEST_CASE("validate: shares of a residual are ranges in the order of ranks", "[validate]") {
  for (const int ranks : {1, 2, 3, 8, 72, 256}) {
    for (const int64_t tokens : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{8}, int64_t{1000}, INT64_MAX}) {
      int64_t next = 0;
      for (int rank = 0; rank < ranks; rank++) {
        int64_t first = -1;
        int64_t count = -1;
        REQUIRE(residualShard(tokens, ranks, rank, &first, &count).ok());
        CHECK(first == next);
        CHECK(count == tokens / ranks + (rank < tokens % ranks ? 1 : 0));
        next = first + count;
      }
      CHECK(next == tokens);
    }
  }
  int64_t number = 0;
  CHECK(contains(residualShard(-1, 2, 0, &number, &number).message(), "tokens is -1"));
  CHECK(contains(residualShard(1, 0, 0, &number, &number).message(), "nranks is 0"));
  CHECK(contains(residualShard(1, 2, 2, &number, &number).message(), "rank is 2"));
  CHECK(contains(residualShard(1, 2, -1, &number, &number).message(), "rank is -1"));
  CHECK(contains(residualShard(1, 2, 0, nullptr, &number).message(), "first is NULL"));
  CHECK(contains(residualShard(1, 2, 0, &number, nullptr).message(), "count is NULL"));
}

TEST_CASE("validate: arguments of version 2, whose padding residualSharded has taken", "[validate]") {
  Fused fused(fcclPatternResidualRmsNorm);
  fused.args.version = 2;
  fused.args.residualSharded = 0x5a5a5a5a;
  CheckedCall call;
  REQUIRE(checkAllReduceFused(&fused.args, nullptr, {fcclDeviceHost}, &call).ok());
  CHECK_FALSE(call.call.rows.residualSharded);
  CHECK(copyFusedArgs(&fused.args).residualSharded == 0);
}

TEST_CASE("validate: FCCL_CHECK tells a pushed input from one that is sent", "[validate]") {
  Fused fused(fcclPatternResidualRmsNorm);
  CheckedCall sent;
  REQUIRE(checkAllReduceFused(&fused.args, nullptr, {fcclDeviceCuda}, &sent).ok());
  fused.args.inputPushed = 1;
  CheckedCall pushed;
  REQUIRE(checkAllReduceFused(&fused.args, nullptr, {fcclDeviceCuda}, &pushed).ok());
  CHECK_FALSE(signatureOf(sent, 0, 0) == signatureOf(pushed, 0, 0));
  CHECK(saysInputPushed(signatureOf(pushed, 0, 0)));
  CHECK_FALSE(saysInputPushed(signatureOf(sent, 0, 0)));
  CHECK(contains(describe(signatureOf(pushed, 0, 0)), "inputPushed"));
  CHECK_FALSE(contains(describe(signatureOf(sent, 0, 0)), "inputPushed"));
}

TEST_CASE("validate: arguments of version 1, which ends before inputPushed, at the end of readable memory",
          "[validate]") {
  constexpr size_t kBytes = 144;
  Fused fused(fcclPatternResidualRmsNorm);
  fused.args.size = kBytes;
  fused.args.version = 1;
  fused.args.eps = 0.25f;
  fused.args.inputPushed = 1;  // not there for version 1
  fccl::test::GuardedBuffer old(kBytes);
  std::memcpy(old.data(), &fused.args, kBytes);
  const auto* args = static_cast<const fcclFusedArgs_t*>(old.data());
  for (const fcclDeviceType_t device : {fcclDeviceHost, fcclDeviceCuda}) {
    CheckedCall call;
    const Status status = checkAllReduceFused(args, nullptr, {device}, &call);
    INFO(status.message());
    REQUIRE(status.ok());
    CHECK(call.call.rows.input == fused.args.input);
    CHECK(call.call.rows.eps == 0.25f);
    CHECK_FALSE(call.call.rows.inputPushed);
  }
  // As a group keeps it.
  const fcclFusedArgs_t copy = copyFusedArgs(args);
  CHECK(copy.version == 1);
  CHECK(copy.inputPushed == 0);
  CheckedCall call;
  CHECK(checkAllReduceFused(&copy, nullptr, {fcclDeviceHost}, &call).ok());
  // A header that lies is found before anything behind it is read.
  fccl::test::GuardedBuffer header(16);
  std::memcpy(header.data(), &fused.args, 16);
  static_cast<fcclFusedArgs_t*>(header.data())->size = SIZE_MAX;
  args = static_cast<const fcclFusedArgs_t*>(header.data());
  CHECK(contains(checkAllReduceFused(args, nullptr, {fcclDeviceHost}, &call).message(), "size"));
  CHECK(copyFusedArgs(args).size == SIZE_MAX);
  CHECK(copyFusedArgs(nullptr).version == FCCL_FUSED_ARGS_VERSION);
}

TEST_CASE("validate: buffers at the end of the address space", "[validate]") {
  BufferList buffers;
  buffers.add("low", reinterpret_cast<void*>(uintptr_t{4096}), 100, false);
  CHECK(buffers.add("none", nullptr, 100, true) == -1);
  buffers.add("high", reinterpret_cast<void*>(UINTPTR_MAX - 100), 100, true);
  CHECK(buffers.check().ok());
}

TEST_CASE("validate: plan cache", "[validate]") {
  PlanCache cache;
  Query query;
  query.rows = 1;
  const auto keyOf = [&](int64_t cols, fcclStrategy_t strategy) {
    query.cols = cols;
    return PlanKey::of(query, strategy);
  };
  Plan plan;
  CHECK(cache.find(keyOf(5, fcclStrategyAuto)) == nullptr);
  plan.shape.colsPerChunk = 5;
  cache.add(keyOf(5, fcclStrategyAuto), plan);
  plan.shape.colsPerChunk = 6;
  cache.add(keyOf(5, fcclStrategyTwoshot), plan);
  CHECK(cache.find(keyOf(5, fcclStrategyAuto))->shape.colsPerChunk == 5);
  CHECK(cache.find(keyOf(5, fcclStrategyTwoshot))->shape.colsPerChunk == 6);
  query.outputsAligned = true;
  CHECK(cache.find(keyOf(5, fcclStrategyAuto)) == nullptr);
  query.outputsAligned = false;
  query.inputPushed = true;
  CHECK(cache.find(keyOf(5, fcclStrategyAuto)) == nullptr);
  // It does not grow for ever, and what it finds stays right.
  for (int64_t cols = 1; cols <= 3 * static_cast<int64_t>(PlanCache::kCapacity); cols++) {
    plan.shape.colsPerChunk = cols;
    const Plan* added = cache.add(keyOf(cols, fcclStrategyAuto), plan);
    REQUIRE(added->shape.colsPerChunk == cols);
    REQUIRE(cache.find(keyOf(cols, fcclStrategyAuto)) == added);
  }
  CHECK(cache.size() <= PlanCache::kCapacity);
}
