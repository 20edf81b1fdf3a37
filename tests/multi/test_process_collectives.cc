// Collectives between real processes, through every provider of shared memory.
#include <fmt/format.h>

#include "tests/support/catch.h"
#include "tests/support/fused_case.h"
#include "tests/support/process_ranks.h"

using namespace fccl::test;

namespace {

// Runs a fused case on this rank and checks it against the reference. Empty: right.
std::string fusedOnThisRank(const RankProcess& self, fcclComm_t comm, const FusedCase& asked) {
  FusedProblem problem(asked, self.ranks);
  Bytes norm;
  const fcclFusionPattern_t sibling = traits(asked.pattern).withNormOut;
  for (const fcclFusionPattern_t pattern : {sibling, asked.pattern}) {
    FusedBuffers own(problem, self.rank, pattern);
    if (fcclAllReduceFused(&own.args, comm, nullptr) != fcclSuccess) return fcclGetLastError(comm);
    const FusedOutputs outputs = own.outputs();
    if (!outputs.norm.empty()) norm = outputs.norm;
    if (const std::string wrong = problem.check(pattern, outputs, norm); !wrong.empty()) {
      return asked.describe() + ": " + wrong;
    }
    if (const std::string damage = own.intact(); !damage.empty()) return asked.describe() + ": " + damage;
  }
  return "";
}

std::string reduceOnThisRank(const RankProcess& self, fcclComm_t comm, fcclDataType_t dtype, fcclRedOp_t op,
                             size_t count) {
  std::vector<Bytes> data;
  std::vector<const void*> at;
  for (int rank = 0; rank < self.ranks; ++rank) {
    data.emplace_back(count * dtypeBytes(dtype));
    fillPlain(dtype, data.back().data(), count, count + 5, rank);
  }
  for (const Bytes& each : data) at.push_back(each.data());
  Bytes result(count * dtypeBytes(dtype));
  if (fcclAllReduce(at[static_cast<size_t>(self.rank)], result.data(), count, dtype, op, comm, nullptr) !=
      fcclSuccess) {
    return fcclGetLastError(comm);
  }
  const Bytes expected = referenceAllReduce(dtype, op, at, count);
  const std::string wrong = compareAllReduce(dtype, op, expected.data(), result.data(), count);
  return wrong.empty() ? "" : fmt::format("{} {} x{}: {}", opName(op), dtypeName(dtype), count, wrong);
}

const RankProgram kCollectives("collectives", [](RankProcess& self) {
  const fcclConfig_t config = testConfig(self.argument == "small" ? 4096 : 0);
  fcclComm_t comm = self.init(&config);
  std::string wrong;
  for (const size_t count : {size_t{1}, size_t{65}, size_t{4099}, size_t{200'003}}) {
    for (const fcclDataType_t dtype : {fcclFloat32, fcclBfloat16, fcclInt32, fcclFloat64}) {
      if (wrong.empty()) wrong = reduceOnThisRank(self, comm, dtype, count % 2 == 0 ? fcclMax : fcclSum, count);
    }
  }
  uint64_t seed = 0;
  for (const fcclFusionPattern_t pattern : allPatterns()) {
    for (const fcclStrategy_t strategy : {fcclStrategyAuto, fcclStrategyOneshot, fcclStrategyTwoshot}) {
      FusedCase asked;
      asked.pattern = pattern;
      asked.strategy = strategy;
      asked.tokens = 1 + static_cast<int64_t>(seed % 9);
      asked.hidden = 720 + 16 * static_cast<int64_t>(seed % 3);
      asked.data = seed % 4 == 0 ? DataKind::kSpecial : DataKind::kCancellation;
      asked.seed = ++seed;
      if (wrong.empty()) wrong = fusedOnThisRank(self, comm, asked);
    }
  }
  if (fcclCommDestroy(comm) != fcclSuccess && wrong.empty()) wrong = "fcclCommDestroy failed";
  self.send(wrong.empty() ? "right" : "wrong " + wrong);
  return wrong.empty() ? 0 : 1;
});

void runCollectives(int ranks, const Environment& environment, const std::string& argument) {
  const auto before = fcclNames();
  ProcessRanks processes("collectives", ranks, environment, argument);
  processes.relayId();
  for (int rank = 0; rank < ranks; ++rank) processes.expect(rank, "right", Milliseconds(60'000));
  processes.expectAllExit();
  CHECK(fcclLeftovers(before).empty());
}

// Windows between processes: the input of one is read by the others.
const RankProgram kWindow("window", [](RankProcess& self) {
  const fcclConfig_t config = testConfig(4096);
  fcclComm_t comm = self.init(&config);
  void* block = nullptr;
  fcclWindow_t window = nullptr;
  constexpr size_t kCount = 30'000;
  bool right = fcclMemAllocOn(&block, 2 * kCount * sizeof(int32_t), fcclDeviceHost) == fcclSuccess &&
               fcclCommWindowRegister(comm, block, 2 * kCount * sizeof(int32_t), &window, 0) == fcclSuccess;
  auto* values = static_cast<int32_t*>(block);
  for (int32_t round = 0; right && round < 30; ++round) {
    const size_t count = kCount >> (round % 12);
    for (size_t i = 0; i < count; ++i) values[i] = static_cast<int32_t>(i) * (self.rank + 1) + round;
    right = fcclAllReduce(values, values + kCount, count, fcclInt32, fcclSum, comm, nullptr) == fcclSuccess;
    const int32_t ranks = self.ranks;
    for (size_t i = 0; right && i < count; ++i) {
      right = values[kCount + i] == static_cast<int32_t>(i) * (ranks * (ranks + 1) / 2) + round * ranks;
    }
  }
  self.send(right ? "right" : fmt::format("wrong {}", fcclGetLastError(comm)));
  right = fcclCommWindowDeregister(comm, window) == fcclSuccess && right;
  right = fcclMemFree(block) == fcclSuccess && fcclCommDestroy(comm) == fcclSuccess && right;
  return right ? 0 : 1;
});

// Two halves of a split in processes.
const RankProgram kSplit("split", [](RankProcess& self) {
  fcclComm_t comm = self.init();
  fcclComm_t half = nullptr;
  bool right = fcclCommSplit(comm, self.rank % 2, -self.rank, &half, nullptr) == fcclSuccess;
  float value = static_cast<float>(self.rank);
  right = right && fcclAllReduce(&value, &value, 1, fcclFloat32, fcclSum, half, nullptr) == fcclSuccess;
  right = right && value == (self.rank % 2 == 0 ? 2.0f : 4.0f);
  // The parent may go first.
  right = fcclCommDestroy(comm) == fcclSuccess && right;
  value = 1;
  right = right && fcclAllReduce(&value, &value, 1, fcclFloat32, fcclSum, half, nullptr) == fcclSuccess && value == 2;
  self.send(right ? "right" : fmt::format("wrong {}", fcclGetLastError(half)));
  return fcclCommDestroy(half) == fcclSuccess && right ? 0 : 1;
});

}  // namespace

TEST_CASE("processes: 2 ranks", "[processes]") { runCollectives(2, {}, "default"); }
TEST_CASE("processes: 4 ranks, smallest slots", "[processes]") { runCollectives(4, {}, "small"); }
TEST_CASE("processes: 8 ranks, smallest slots", "[processes]") { runCollectives(8, {}, "small"); }
TEST_CASE("processes: 3 ranks over memfd", "[processes]") {
  runCollectives(3, {{"FCCL_SHARED_MEMORY", "memfd"}}, "default");
}
TEST_CASE("processes: 3 ranks over POSIX shared memory", "[processes]") {
  runCollectives(3, {{"FCCL_SHARED_MEMORY", "posix"}}, "default");
}
TEST_CASE("processes: plain instruction set", "[processes]") { runCollectives(2, {{"FCCL_SIMD", "generic"}}, "small"); }

TEST_CASE("processes: windows", "[processes]") {
  ProcessRanks processes("window", 4);
  processes.relayId();
  processes.expectAll("right");
  processes.expectAllExit();
}

TEST_CASE("processes: split", "[processes]") {
  ProcessRanks processes("split", 4);
  processes.relayId();
  processes.expectAll("right");
  processes.expectAllExit();
}
