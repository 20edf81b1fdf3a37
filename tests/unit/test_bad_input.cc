// Bad arguments of the collectives: every one is refused with a sentence that names it, nothing is written, and the
// communicator works on.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "fccl_device.h"
#include "tests/support/catch.h"
#include "tests/support/fused_case.h"

using namespace fccl::test;

namespace {

template <class T>
const T* shifted(const T* pointer, size_t bytes) {
  return reinterpret_cast<const T*>(reinterpret_cast<uintptr_t>(pointer) + bytes);
}
void* shifted(void* pointer, size_t bytes) { return static_cast<char*>(pointer) + bytes; }

// An enum value that the header does not have, the way a C caller can produce it.
template <class Enum>
void setUnknown(Enum* field, int value) {
  static_assert(sizeof(Enum) == sizeof(int));
  std::memcpy(field, &value, sizeof(value));
}

struct BadFused {
  const char* name;
  const char* words;  // what the sentence must mention, separated by '|'
  std::function<void(fcclFusedArgs_t&)> spoil;
};

// Spoils the arguments of a good call in one way after the other, on all ranks at once.
void refuseEach(RankGroup& group, const FusedCase& asked, const std::vector<BadFused>& table) {
  FusedProblem problem(asked, group.ranks());
  for (const BadFused& bad : table) {
    group.run(fmt::format("{}: {}", asked.describe(), bad.name), [&](Rank& rank) {
      FusedBuffers own(problem, rank.rank, asked.pattern);
      fcclFusedArgs_t args = own.args;
      bad.spoil(args);
      rank.fails(fcclAllReduceFused(&args, rank.comm, nullptr), fcclInvalidArgument, bad.words, bad.name);
      rank.expect(own.untouched(), fmt::format("{}: an output was written", bad.name));
      rank.expect(own.intact().empty(), fmt::format("{}: {}", bad.name, own.intact()));
      fcclResult_t async = fcclInProgress;
      rank.ok(fcclCommGetAsyncError(rank.comm, &async), "fcclCommGetAsyncError");
      rank.expect(async == fcclSuccess, fmt::format("{}: the communicator is ended", bad.name));
    });
  }
  runFused(group, problem);
}

FusedCase caseOf(fcclFusionPattern_t pattern) {
  FusedCase asked;
  asked.pattern = pattern;
  asked.tokens = 5;
  asked.hidden = 64;
  return asked;
}

}  // namespace

TEST_CASE("bad input: numbers of a fused call", "[bad-input]") {
  RankGroup group(2);
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<BadFused> table = {
      {"size 0", "size", [](auto& a) { a.size = 0; }},
      {"size + 1", "size", [](auto& a) { a.size += 1; }},
      {"size - 8", "size", [](auto& a) { a.size -= 8; }},
      {"magic 0", "magic", [](auto& a) { a.magic = 0; }},
      {"magic of the configuration", "magic", [](auto& a) { a.magic = FCCL_CONFIG_MAGIC; }},
      {"version 0", "version", [](auto& a) { a.version = 0; }},
      {"version 4", "version|4|1 to 3", [](auto& a) { a.version = FCCL_FUSED_ARGS_VERSION + 1; }},
      {"version 1 with the size of 2", "size|version 1", [](auto& a) { a.version = 1; }},
      {"version 2 with the size of 1", "size|version 2", [](auto& a) { a.version = 2, a.size = 144; }},
      {"residualSharded 2", "residualSharded|2", [](auto& a) { a.residualSharded = 2; }},
      {"inputPushed 2", "inputPushed|2", [](auto& a) { a.inputPushed = 2; }},
      {"inputPushed -1", "inputPushed|-1", [](auto& a) { a.inputPushed = -1; }},
      {"inputPushed on HOST", "inputPushed|HOST", [](auto& a) { a.inputPushed = 1; }},
      {"tokens -1", "tokens|-1", [](auto& a) { a.tokens = -1; }},
      {"tokens INT64_MIN", "tokens", [](auto& a) { a.tokens = INT64_MIN; }},
      {"tokens INT64_MAX", "tokens", [](auto& a) { a.tokens = INT64_MAX; }},
      {"tokens * hidden = 2^63", "tokens", [](auto& a) { a.tokens = INT64_MAX / 64 + 1; }},
      {"tokens * hidden * size beyond", "tokens", [](auto& a) { a.tokens = INT64_MAX / 64 - 1; }},
      {"hidden 0", "hidden|0", [](auto& a) { a.hidden = 0; }},
      {"hidden -64", "hidden|-64", [](auto& a) { a.hidden = -64; }},
      {"hidden INT64_MAX", "hidden", [](auto& a) { a.hidden = INT64_MAX; }},
      {"eps -1e-5", "eps", [](auto& a) { a.eps = -1e-5f; }},
      {"eps NaN", "eps", [](auto& a) { a.eps = kNan; }},
      {"eps Inf", "eps", [](auto& a) { a.eps = kInfinity; }},
      {"weightBias 0.5", "weightBias|0.5", [](auto& a) { a.weightBias = 0.5f; }},
      {"weightBias NaN", "weightBias", [](auto& a) { a.weightBias = kNan; }},
      {"weightDtype fp16 beside bf16", "weightDtype", [](auto& a) { a.weightDtype = fcclFloat16; }},
      {"weightDtype fp64", "weightDtype", [](auto& a) { a.weightDtype = fcclFloat64; }},
      {"weightDtype -2", "weightDtype", [](auto& a) { a.weightDtype = -2; }},
      {"weightDtype 99", "weightDtype", [](auto& a) { a.weightDtype = 99; }},
  };
  for (const int dtype : {-1, 0, 1, 2, 3, 4, 5, 8, 10, 1000, INT32_MAX}) {
    table.push_back({"unknown dtype", "dtype", [dtype](auto& a) { setUnknown(&a.dtype, dtype); }});
  }
  for (const int pattern : {-1, 7, 255, INT32_MIN}) {
    table.push_back({"unknown pattern", "pattern", [pattern](auto& a) { setUnknown(&a.pattern, pattern); }});
  }
  for (const int strategy : {-1, 7, 9, 1000}) {
    table.push_back({"unknown strategy", "strategy", [strategy](auto& a) { setUnknown(&a.strategy, strategy); }});
  }
  refuseEach(group, caseOf(fcclPatternResidualRmsNormOutQuantFp8), table);
  refuseEach(group, caseOf(fcclPatternResidualRmsNormQuantNvfp4),
             {
                 {"hidden 72", "hidden|72|16", [](auto& a) { a.hidden = 72; }},
                 {"hidden 8", "hidden|8|16", [](auto& a) { a.hidden = 8; }},
                 {"layout 3", "scaleLayout", [](auto& a) { setUnknown(&a.scaleLayout, 3); }},
                 {"layout -1", "scaleLayout", [](auto& a) { setUnknown(&a.scaleLayout, -1); }},
             });
}

TEST_CASE("bad input: a fused call lacks a pointer that its pattern needs, or has one that it must not",
          "[bad-input]") {
  RankGroup group(2);
  for (const fcclFusionPattern_t pattern : allPatterns()) {
    const PatternTraits& has = traits(pattern);
    static char spareBytes[5 * 64 * 4];
    void* spare = spareBytes;
    std::vector<BadFused> table = {{"input NULL", "input", [](auto& a) { a.input = nullptr; }}};
    if (!has.norm) {
      table.push_back({"reducedOut NULL", "reducedOut", [](auto& a) { a.reducedOut = nullptr; }});
    }
    if (has.residual) {
      table.push_back({"residual NULL", "residual", [](auto& a) { a.residual = nullptr; }});
      table.push_back({"residualOut NULL", "residualOut", [](auto& a) { a.residualOut = nullptr; }});
    } else {
      table.push_back({"residual extra", "residual", [=](auto& a) { a.residual = spare; }});
      table.push_back({"residualOut extra", "residualOut", [=](auto& a) { a.residualOut = spare; }});
    }
    if (has.norm) {
      table.push_back({"weight NULL", "weight", [](auto& a) { a.weight = nullptr; }});
    } else {
      table.push_back({"weight extra", "weight", [=](auto& a) { a.weight = spare; }});
    }
    if (has.normOut) {
      table.push_back({"normOut NULL", "normOut", [](auto& a) { a.normOut = nullptr; }});
    } else {
      table.push_back({"normOut extra", "normOut", [=](auto& a) { a.normOut = spare; }});
    }
    if (has.quant != Quant::kNone) {
      table.push_back({"quantOut NULL", "quantOut", [](auto& a) { a.quantOut = nullptr; }});
    } else {
      table.push_back({"quantOut extra", "quantOut", [=](auto& a) { a.quantOut = spare; }});
    }
    if (has.quant == Quant::kFp8) {
      table.push_back({"fp8DequantScale NULL", "fp8DequantScale", [](auto& a) { a.fp8DequantScale = nullptr; }});
    }
    if (has.quant == Quant::kNvfp4) {
      table.push_back({"nvfp4GlobalScale NULL", "nvfp4GlobalScale", [](auto& a) { a.nvfp4GlobalScale = nullptr; }});
      table.push_back({"scaleOut NULL", "scaleOut", [](auto& a) { a.scaleOut = nullptr; }});
    } else {
      table.push_back({"scaleOut extra", "scaleOut", [=](auto& a) { a.scaleOut = spare; }});
    }
    refuseEach(group, caseOf(pattern), table);
  }
}

TEST_CASE("bad input: misaligned pointers of a fused call", "[bad-input]") {
  RankGroup group(2);
  for (const fcclDataType_t dtype : {fcclBfloat16, fcclFloat32}) {
    FusedCase asked = caseOf(fcclPatternResidualRmsNormOutQuantNvfp4);
    asked.dtype = dtype;
    asked.reducedOut = true;
    refuseEach(group, asked,
               {
                   {"input", "input", [](auto& a) { a.input = shifted(a.input, 1); }},
                   {"residual", "residual", [](auto& a) { a.residual = shifted(a.residual, 1); }},
                   {"weight", "weight", [](auto& a) { a.weight = shifted(a.weight, 1); }},
                   {"reducedOut", "reducedOut", [](auto& a) { a.reducedOut = shifted(a.reducedOut, 1); }},
                   {"residualOut", "residualOut", [](auto& a) { a.residualOut = shifted(a.residualOut, 1); }},
                   {"normOut", "normOut", [](auto& a) { a.normOut = shifted(a.normOut, 1); }},
                   {"nvfp4GlobalScale", "nvfp4GlobalScale",
                    [](auto& a) { a.nvfp4GlobalScale = shifted(a.nvfp4GlobalScale, 2); }},
               });
  }
  refuseEach(
      group, caseOf(fcclPatternResidualRmsNormQuantFp8),
      {{"fp8DequantScale", "fp8DequantScale", [](auto& a) { a.fp8DequantScale = shifted(a.fp8DequantScale, 1); }}});
  // fp32 weights beside bf16 data need the alignment of fp32.
  FusedCase mixed = caseOf(fcclPatternResidualRmsNorm);
  mixed.fp32Weight = true;
  refuseEach(group, mixed, {{"fp32 weight", "weight", [](auto& a) { a.weight = shifted(a.weight, 2); }}});
}

TEST_CASE("bad input: fcclAllReduce", "[bad-input]") {
  RankGroup group(2);
  struct Bad {
    const char* name;
    const char* words;
    std::function<fcclResult_t(float*, float*, fcclComm_t)> call;
  };
  const std::vector<Bad> table = {
      {"sendbuff NULL", "sendbuff",
       [](float*, float* out, fcclComm_t comm) {
         return fcclAllReduce(nullptr, out, 8, fcclFloat32, fcclSum, comm, nullptr);
       }},
      {"recvbuff NULL", "recvbuff",
       [](float* in, float*, fcclComm_t comm) {
         return fcclAllReduce(in, nullptr, 8, fcclFloat32, fcclSum, comm, nullptr);
       }},
      {"sendbuff misaligned", "sendbuff",
       [](float* in, float* out, fcclComm_t comm) {
         return fcclAllReduce(shifted(in, 1), out, 8, fcclFloat32, fcclSum, comm, nullptr);
       }},
      {"recvbuff misaligned for fp64", "recvbuff",
       [](float* in, float* out, fcclComm_t comm) {
         return fcclAllReduce(in, out + 1, 4, fcclFloat64, fcclSum, comm, nullptr);
       }},
      {"recvbuff misaligned for bf16", "recvbuff",
       [](float* in, float* out, fcclComm_t comm) {
         return fcclAllReduce(in, shifted(static_cast<void*>(out), 1), 8, fcclBfloat16, fcclSum, comm, nullptr);
       }},
      {"count SIZE_MAX", "count",
       [](float* in, float* out, fcclComm_t comm) {
         return fcclAllReduce(in, out, SIZE_MAX, fcclInt8, fcclSum, comm, nullptr);
       }},
      {"count * size = 2^64", "count",
       [](float* in, float* out, fcclComm_t comm) {
         return fcclAllReduce(in, out, SIZE_MAX / 4 + 1, fcclFloat32, fcclSum, comm, nullptr);
       }},
      {"count * size = 2^63", "count",
       [](float* in, float* out, fcclComm_t comm) {
         return fcclAllReduce(in, out, SIZE_MAX / 16 + 1, fcclFloat64, fcclSum, comm, nullptr);
       }},
      {"datatype 10", "datatype|10",
       [](float* in, float* out, fcclComm_t comm) {
         fcclDataType_t dtype;
         setUnknown(&dtype, 10);
         return fcclAllReduce(in, out, 8, dtype, fcclSum, comm, nullptr);
       }},
      {"datatype -1", "datatype|-1",
       [](float* in, float* out, fcclComm_t comm) {
         fcclDataType_t dtype;
         setUnknown(&dtype, -1);
         return fcclAllReduce(in, out, 8, dtype, fcclSum, comm, nullptr);
       }},
      {"op 5", "op|5",
       [](float* in, float* out, fcclComm_t comm) {
         fcclRedOp_t op;
         setUnknown(&op, 5);
         return fcclAllReduce(in, out, 8, fcclFloat32, op, comm, nullptr);
       }},
      {"op -1", "op|-1",
       [](float* in, float* out, fcclComm_t comm) {
         fcclRedOp_t op;
         setUnknown(&op, -1);
         return fcclAllReduce(in, out, 8, fcclFloat32, op, comm, nullptr);
       }},
      {"bad op with count 0", "op|77",
       [](float* in, float* out, fcclComm_t comm) {
         fcclRedOp_t op;
         setUnknown(&op, 77);
         return fcclAllReduce(in, out, 0, fcclFloat32, op, comm, nullptr);
       }},
      {"stream not NULL", "stream",
       [](float* in, float* out, fcclComm_t comm) {
         return fcclAllReduce(in, out, 8, fcclFloat32, fcclSum, comm, reinterpret_cast<fcclStream_t>(in));
       }},
      {"overlap by one element, output behind", "recvbuff|sendbuff",
       [](float* in, float*, fcclComm_t comm) {
         return fcclAllReduce(in, in + 7, 8, fcclFloat32, fcclSum, comm, nullptr);
       }},
      {"overlap, output in front", "recvbuff|sendbuff",
       [](float* in, float*, fcclComm_t comm) {
         return fcclAllReduce(in + 4, in, 8, fcclFloat32, fcclSum, comm, nullptr);
       }},
  };
  for (const Bad& bad : table) {
    group.run(bad.name, [&](Rank& rank) {
      GuardedBuffer in(16 * sizeof(float));
      GuardedBuffer out(16 * sizeof(float));
      rank.fails(bad.call(in.as<float>(), out.as<float>(), rank.comm), fcclInvalidArgument, bad.words, bad.name);
      rank.expect(in.untouched() && out.untouched(), fmt::format("{}: a buffer was written", bad.name));
    });
  }
  // Neighbours without a byte between them are fine, and so is every later call.
  group.run("good call", [](Rank& rank) {
    float values[16];
    for (int i = 0; i < 8; ++i) values[i] = static_cast<float>(rank.rank + 1);
    rank.ok(fcclAllReduce(values, values + 8, 8, fcclFloat32, fcclSum, rank.comm, nullptr), "neighbours");
    rank.expect(values[8] == 3 && values[15] == 3 && values[7] == static_cast<float>(rank.rank + 1), "wrong sum");
  });
}

TEST_CASE("bad input: NULL and wrong handles", "[bad-input]") {
  float in[8] = {};
  float out[8] = {};
  fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
  args.hidden = 8;
  int number = 0;
  fcclResult_t async = fcclSuccess;
  fcclComm_t comm = nullptr;
  fcclWindow_t window = nullptr;
  const auto mentions = [](std::string_view word) {
    return std::string(fcclGetLastError(nullptr)).find(word) != std::string::npos;
  };
  CHECK(fcclAllReduce(in, out, 8, fcclFloat32, fcclSum, nullptr, nullptr) == fcclInvalidArgument);
  CHECK(mentions("comm"));
  CHECK(fcclAllReduceFused(&args, nullptr, nullptr) == fcclInvalidArgument);
  CHECK(mentions("comm"));
  CHECK(fcclCommSplit(nullptr, 0, 0, &comm, nullptr) == fcclInvalidArgument);
  CHECK(fcclCommFinalize(nullptr) == fcclInvalidArgument);
  CHECK(fcclCommDestroy(nullptr) == fcclInvalidArgument);
  CHECK(fcclCommAbort(nullptr) == fcclInvalidArgument);
  CHECK(fcclCommGetAsyncError(nullptr, &async) == fcclInvalidArgument);
  CHECK(fcclCommCount(nullptr, &number) == fcclInvalidArgument);
  CHECK(fcclCommUserRank(nullptr, &number) == fcclInvalidArgument);
  CHECK(fcclCommDevice(nullptr, &number) == fcclInvalidArgument);
  CHECK(mentions("comm"));
  CHECK(fcclCommWindowRegister(nullptr, in, sizeof(in), &window, 0) == fcclInvalidArgument);
  CHECK(fcclCommWindowDeregister(nullptr, nullptr) == fcclInvalidArgument);
  CHECK(fcclGetVersion(nullptr) == fcclInvalidArgument);
  CHECK(fcclGetUniqueId(nullptr) == fcclInvalidArgument);
  CHECK(mentions("id"));
  CHECK(fcclMemAlloc(nullptr, 64) == fcclInvalidArgument);
  CHECK(fcclMemFree(in) == fcclInvalidArgument);
  CHECK(out[0] == 0);

  RankGroup group(2);
  group.run("NULL beside a good communicator", [&](Rank& rank) {
    rank.fails(fcclAllReduceFused(nullptr, rank.comm, nullptr), fcclInvalidArgument, "args", "args NULL");
    rank.fails(fcclCommGetAsyncError(rank.comm, nullptr), fcclInvalidArgument, "asyncError", "asyncError NULL");
    rank.fails(fcclCommCount(rank.comm, nullptr), fcclInvalidArgument, "count", "count NULL");
    rank.fails(fcclCommUserRank(rank.comm, nullptr), fcclInvalidArgument, "rank", "rank NULL");
    rank.fails(fcclCommDevice(rank.comm, nullptr), fcclInvalidArgument, "device", "device NULL");
    fcclFusedArgs_t good = FCCL_FUSED_ARGS_INITIALIZER;
    good.hidden = 8;
    rank.fails(fcclAllReduceFused(&good, rank.comm, reinterpret_cast<fcclStream_t>(&good)), fcclInvalidArgument,
               "stream", "stream not NULL");
  });
  runFused(group, FusedCase{});
}

TEST_CASE("bad input: fcclCommInit and its configuration", "[bad-input]") {
  fcclUniqueId id;
  REQUIRE(fcclGetUniqueId(&id) == fcclSuccess);
  const auto refused = [&](int ranks, int rank, const char* word) {
    fcclComm_t comm = reinterpret_cast<fcclComm_t>(&id);
    CHECK(fcclCommInit(&comm, ranks, id, rank, nullptr) == fcclInvalidArgument);
    CHECK(comm == nullptr);
    INFO(fcclGetLastError(nullptr));
    CHECK(std::string(fcclGetLastError(nullptr)).find(word) != std::string::npos);
  };
  refused(0, 0, "nranks");
  refused(-1, 0, "nranks");
  refused(257, 0, "nranks");
  refused(2560, 0, "nranks");
  refused(INT32_MAX, 0, "nranks");
  refused(2, -1, "rank");
  refused(2, 2, "rank");
  refused(2, INT32_MAX, "rank");
  CHECK(fcclCommInit(nullptr, 1, id, 0, nullptr) == fcclInvalidArgument);
  CHECK(fcclCommInitAll(nullptr, 2, nullptr) == fcclInvalidArgument);
  fcclComm_t comms[2] = {};
  CHECK(fcclCommInitAll(comms, 0, nullptr) == fcclInvalidArgument);
  CHECK(fcclCommInitAll(comms, -3, nullptr) == fcclInvalidArgument);

  struct BadConfig {
    const char* word;
    std::function<void(fcclConfig_t&)> spoil;
  };
  const std::vector<BadConfig> table = {
      {"size", [](auto& c) { c.size = 0; }},
      {"size", [](auto& c) { c.size += 8; }},
      {"magic", [](auto& c) { c.magic = FCCL_FUSED_ARGS_MAGIC; }},
      {"version", [](auto& c) { c.version = 0; }},
      {"version", [](auto& c) { c.version = 77; }},
      {"deviceType", [](auto& c) { c.deviceType = 7; }},
      {"deviceType", [](auto& c) { c.deviceType = -2; }},
      {"strategy", [](auto& c) { c.strategy = 9; }},
      {"strategy", [](auto& c) { c.strategy = 7; }},
      {"checkCalls", [](auto& c) { c.checkCalls = 2; }},
      {"timeoutMs", [](auto& c) { c.timeoutMs = -5; }},
      {"initTimeoutMs", [](auto& c) { c.initTimeoutMs = INT32_MIN; }},
      {"sharedMemory", [](auto& c) { c.sharedMemory = 3; }},
      {"bindCores", [](auto& c) { c.bindCores = -7; }},
      {"slotBytes", [](auto& c) { c.slotBytes = 0; }},
      {"slotBytes", [](auto& c) { c.slotBytes = -4096; }},
      {"slotBytes", [](auto& c) { c.slotBytes = (64 << 20) + 1; }},
      {"slotBytes", [](auto& c) { c.slotBytes = 640 << 20; }},
      {"slotBytes", [](auto& c) { c.slotBytes = INT32_MAX; }},
  };
  for (const BadConfig& bad : table) {
    fcclConfig_t config = testConfig();
    bad.spoil(config);
    fcclComm_t comm = reinterpret_cast<fcclComm_t>(&id);
    INFO(bad.word);
    CHECK(fcclCommInit(&comm, 1, id, 0, &config) == fcclInvalidArgument);
    CHECK(comm == nullptr);
    CHECK(std::string(fcclGetLastError(nullptr)).find(bad.word) != std::string::npos);
    comms[0] = comms[1] = reinterpret_cast<fcclComm_t>(&id);
    CHECK(fcclCommInitAll(comms, 2, &config) == fcclInvalidArgument);
    CHECK(comms[0] == nullptr);
    CHECK(comms[1] == nullptr);
  }
  // None of this used the id up.
  const fcclConfig_t host = testConfig();
  fcclComm_t comm = nullptr;
  CHECK(fcclCommInit(&comm, 1, id, 0, &host) == fcclSuccess);
  CHECK(fcclCommDestroy(comm) == fcclSuccess);
}

TEST_CASE("bad input: an id that nobody made", "[bad-input]") {
  for (const int fill : {0, 0x5a, 0xff}) {
    fcclUniqueId id;
    std::memset(&id, fill, sizeof(id));
    fcclConfig_t config = testConfig();
    config.initTimeoutMs = 500;
    fcclComm_t comm = nullptr;
    CHECK(fcclCommInit(&comm, 2, id, 1, &config) != fcclSuccess);
    CHECK(comm == nullptr);
    CHECK(std::strlen(fcclGetLastError(nullptr)) > 20);
  }
}

TEST_CASE("bad input: fcclDevicePushInit", "[bad-input]") {
  RankGroup group(2);
  group.run("refused", [](Rank& rank) {
    struct Bad {
      const char* words;
      int64_t tokens;
      int64_t hidden;
      int dtype;
      std::function<void(fcclDevicePush_t&)> spoil;
    };
    const std::vector<Bad> table = {
        {"size", 1, 64, fcclBfloat16, [](auto& p) { p.size -= 8; }},
        {"size", 1, 64, fcclBfloat16, [](auto& p) { p.size = 0; }},
        {"magic|FCCL_DEVICE_PUSH_INITIALIZER", 1, 64, fcclBfloat16, [](auto& p) { p.magic = FCCL_CONFIG_MAGIC; }},
        {"version", 1, 64, fcclBfloat16, [](auto& p) { p.version++; }},
        {"tokens|-1", -1, 64, fcclBfloat16, nullptr},
        {"hidden|0", 1, 0, fcclBfloat16, nullptr},
        {"hidden|-8", 1, -8, fcclBfloat16, nullptr},
        {"hidden|68|8 elements of bf16", 1, 68, fcclBfloat16, nullptr},
        {"hidden|66|4 elements of fp32", 1, 66, fcclFloat32, nullptr},
        {"dtype|8", 1, 64, fcclFloat64, nullptr},
        {"dtype|-1", 1, 64, -1, nullptr},
        {"dtype|99", 1, 64, 99, nullptr},
        {"comm|HOST|deviceType", 1, 64, fcclBfloat16, nullptr},
    };
    for (const Bad& bad : table) {
      fcclDevicePush_t push = FCCL_DEVICE_PUSH_INITIALIZER;
      if (bad.spoil) bad.spoil(push);
      const fcclDevicePush_t before = push;
      fcclDataType_t dtype;
      setUnknown(&dtype, bad.dtype);
      rank.fails(fcclDevicePushInit(rank.comm, bad.tokens, bad.hidden, dtype, &push), fcclInvalidArgument, bad.words,
                 bad.words);
      rank.expect(std::memcmp(&push, &before, sizeof(push)) == 0, fmt::format("{}: push was written", bad.words));
    }
    rank.fails(fcclDevicePushInit(rank.comm, 1, 64, fcclBfloat16, nullptr), fcclInvalidArgument, "push", "push NULL");
  });
  fcclDevicePush_t push = FCCL_DEVICE_PUSH_INITIALIZER;
  CHECK(fcclDevicePushInit(nullptr, 1, 64, fcclBfloat16, &push) == fcclInvalidArgument);
  runFused(group, FusedCase{});
}

TEST_CASE("bad input: fcclQuantScaleBytes", "[bad-input]") {
  size_t bytes = 12345;
  const auto call = [&](int64_t tokens, int64_t hidden, int pattern, int layout) {
    fcclFusionPattern_t badPattern;
    fcclScaleLayout_t badLayout;
    setUnknown(&badPattern, pattern);
    setUnknown(&badLayout, layout);
    return fcclQuantScaleBytes(tokens, hidden, badPattern, badLayout, &bytes);
  };
  CHECK(call(-1, 64, 5, 0) == fcclInvalidArgument);
  CHECK(call(1, 0, 5, 0) == fcclInvalidArgument);
  CHECK(call(1, -16, 5, 0) == fcclInvalidArgument);
  CHECK(call(1, 24, 5, 0) == fcclInvalidArgument);
  CHECK(call(1, 64, 7, 0) == fcclInvalidArgument);
  CHECK(call(1, 64, -1, 0) == fcclInvalidArgument);
  CHECK(call(1, 64, 5, 3) == fcclInvalidArgument);
  CHECK(call(1, 64, 6, -1) == fcclInvalidArgument);
  CHECK(call(INT64_MAX, 64, 5, 0) == fcclInvalidArgument);
  CHECK(call(INT64_MAX, 1 << 20, 5, 2) == fcclInvalidArgument);
  CHECK(bytes == 12345);
  CHECK(fcclQuantScaleBytes(1, 64, fcclPatternResidualRmsNormQuantNvfp4, fcclScaleLinear, nullptr) ==
        fcclInvalidArgument);

  for (const int64_t tokens : {0, 1, 5, 7, 8, 9, 127, 128, 129, 1000}) {
    for (const int64_t hidden : {16, 48, 64, 80, 2880, 11008}) {
      for (const fcclScaleLayout_t layout : {fcclScaleSwizzled128x4, fcclScaleSwizzled8x4, fcclScaleLinear}) {
        for (const fcclFusionPattern_t pattern : allPatterns()) {
          REQUIRE(fcclQuantScaleBytes(tokens, hidden, pattern, layout, &bytes) == fcclSuccess);
          REQUIRE(bytes == (traits(pattern).quant == Quant::kNvfp4 ? scaleBytes(tokens, hidden, layout) : 0));
        }
      }
    }
  }
}
