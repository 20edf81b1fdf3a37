// fcclGroupStart and fcclGroupEnd: one thread that drives all ranks, on HOST.
#include <fmt/format.h>

#include <cstring>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

using namespace fccl::test;

namespace {

constexpr int kRanks = 4;

// Initialises all ranks on the calling thread.
std::vector<fcclComm_t> initInGroup(int ranks, const fcclConfig_t& config = testConfig()) {
  std::vector<fcclComm_t> comms(static_cast<size_t>(ranks), reinterpret_cast<fcclComm_t>(&comms));
  fcclUniqueId id;
  REQUIRE(fcclGetUniqueId(&id) == fcclSuccess);
  REQUIRE(fcclGroupStart() == fcclSuccess);
  for (int r = 0; r < ranks; ++r) {
    REQUIRE(fcclCommInit(&comms[static_cast<size_t>(r)], ranks, id, r, &config) == fcclSuccess);
    REQUIRE(comms[static_cast<size_t>(r)] == nullptr);
  }
  const fcclResult_t result = fcclGroupEnd();
  INFO(fcclGetLastError(nullptr));
  REQUIRE(result == fcclSuccess);
  return comms;
}

}  // namespace

TEST_CASE("group: one thread initialises and drives all ranks", "[group]") {
  RankGroup group(initInGroup(kRanks));
  for (const int count : {1, 5, 100'000}) {
    std::vector<std::vector<float>> values(kRanks);
    std::vector<std::vector<float>> twice(kRanks, std::vector<float>(static_cast<size_t>(count)));
    REQUIRE(fcclGroupStart() == fcclSuccess);
    for (int r = 0; r < kRanks; ++r) {
      std::vector<float>& mine = values[static_cast<size_t>(r)];
      for (int i = 0; i < count; ++i) mine.push_back(static_cast<float>((r + 1) * (i % 100)));
      int rank = -1;
      REQUIRE(fcclCommUserRank(group.comm(r), &rank) == fcclSuccess);
      REQUIRE(rank == r);
      const auto n = static_cast<size_t>(count);
      REQUIRE(fcclAllReduce(mine.data(), mine.data(), n, fcclFloat32, fcclSum, group.comm(r), nullptr) == fcclSuccess);
      // The second call of a communicator follows its first.
      REQUIRE(fcclAllReduce(mine.data(), twice[static_cast<size_t>(r)].data(), n, fcclFloat32, fcclSum, group.comm(r),
                            nullptr) == fcclSuccess);
      if (count > 1) REQUIRE(mine[1] == static_cast<float>(r + 1));  // not yet
    }
    REQUIRE(fcclGroupEnd() == fcclSuccess);
    for (size_t r = 0; r < kRanks; ++r) {
      for (int i = 0; i < count; ++i) {
        REQUIRE(values[r][static_cast<size_t>(i)] == static_cast<float>(10 * (i % 100)));
        REQUIRE(twice[r][static_cast<size_t>(i)] == static_cast<float>(40 * (i % 100)));
      }
    }
  }
}

TEST_CASE("group: arguments of fused calls are copied, and groups nest", "[group]") {
  RankGroup group(initInGroup(2));
  float input[2][4] = {{1, 2, 3, 4}, {10, 20, 30, 40}};
  float output[2][4] = {};
  REQUIRE(fcclGroupStart() == fcclSuccess);
  for (int r = 0; r < 2; ++r) {
    REQUIRE(fcclGroupStart() == fcclSuccess);
    fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
    args.dtype = fcclFloat32;
    args.tokens = 1;
    args.hidden = 4;
    args.input = input[r];
    args.reducedOut = output[r];
    REQUIRE(fcclAllReduceFused(&args, group.comm(r), nullptr) == fcclSuccess);
    std::memset(&args, 0xee, sizeof(args));
    REQUIRE(fcclGroupEnd() == fcclSuccess);
    REQUIRE(output[r][0] == 0);
  }
  REQUIRE(fcclGroupEnd() == fcclSuccess);
  for (const auto& own : output) {
    for (int i = 0; i < 4; ++i) CHECK(own[i] == static_cast<float>(11 * (i + 1)));
  }
}

TEST_CASE("group: a call that is wrong by itself spoils the group and nothing else", "[group]") {
  RankGroup group(initInGroup(2));
  float values[2] = {1, 2};
  REQUIRE(fcclGroupStart() == fcclSuccess);
  CHECK(fcclAllReduce(&values[0], &values[0], 1, fcclFloat32, fcclSum, group.comm(0), nullptr) == fcclSuccess);
  CHECK(fcclAllReduce(nullptr, &values[1], 1, fcclFloat32, fcclSum, group.comm(1), nullptr) == fcclInvalidArgument);
  CHECK(fcclAllReduce(&values[1], &values[1], 1, fcclFloat32, fcclSum, group.comm(1), nullptr) == fcclSuccess);
  CHECK(fcclGroupEnd() == fcclInvalidArgument);
  const std::string sentence = fcclGetLastError(nullptr);
  INFO(sentence);
  CHECK(sentence.find("sendbuff") != std::string::npos);
  CHECK(sentence.find("Nothing of the group") != std::string::npos);
  CHECK(values[0] == 1);
  CHECK(values[1] == 2);
  CHECK(fcclGroupEnd() == fcclInvalidUsage);

  REQUIRE(fcclGroupStart() == fcclSuccess);
  CHECK(fcclAllReduce(&values[0], &values[0], 1, fcclFloat32, fcclSum, nullptr, nullptr) == fcclInvalidArgument);
  CHECK(fcclGroupEnd() == fcclInvalidArgument);
  REQUIRE(fcclGroupStart() == fcclSuccess);
  CHECK(fcclGroupEnd() == fcclSuccess);

  REQUIRE(fcclGroupStart() == fcclSuccess);
  for (int r = 0; r < 2; ++r) {
    CHECK(fcclAllReduce(&values[r], &values[r], 1, fcclFloat32, fcclSum, group.comm(r), nullptr) == fcclSuccess);
  }
  CHECK(fcclGroupEnd() == fcclSuccess);
  CHECK(values[0] == 3);
  CHECK(values[1] == 3);
}

TEST_CASE("group: a split that is wrong by itself is told at once", "[group]") {
  RankGroup group(initInGroup(2));
  fcclConfig_t wrong = testConfig();
  wrong.timeoutMs = -7;
  fcclComm_t halves[2] = {};
  for (const fcclConfig_t* config : {static_cast<const fcclConfig_t*>(nullptr), &std::as_const(wrong)}) {
    REQUIRE(fcclGroupStart() == fcclSuccess);
    CHECK(fcclCommSplit(group.comm(0), 0, 0, &halves[0], nullptr) == fcclSuccess);
    CHECK(fcclCommSplit(group.comm(1), config == nullptr ? -7 : 0, 0, &halves[1], config) == fcclInvalidArgument);
    CHECK(fcclGroupEnd() == fcclInvalidArgument);
    const std::string sentence = fcclGetLastError(nullptr);
    INFO(sentence);
    CHECK(sentence.find("-7") != std::string::npos);
    CHECK(halves[0] == nullptr);
    CHECK(halves[1] == nullptr);
  }
}

TEST_CASE("group: what fails at the end is the group's error", "[group]") {
  fcclConfig_t config = testConfig();
  config.checkCalls = 1;
  RankGroup group(initInGroup(2, config));
  float values[2] = {1, 2};
  REQUIRE(fcclGroupStart() == fcclSuccess);
  CHECK(fcclAllReduce(&values[0], &values[0], 1, fcclFloat32, fcclSum, group.comm(0), nullptr) == fcclSuccess);
  CHECK(fcclAllReduce(&values[1], &values[1], 1, fcclFloat32, fcclMax, group.comm(1), nullptr) == fcclSuccess);
  CHECK(fcclGroupEnd() == fcclInvalidUsage);
  const std::string sentence = fcclGetLastError(nullptr);
  INFO(sentence);
  CHECK(sentence.find("different collectives") != std::string::npos);

  // The same rank twice.
  fcclUniqueId id;
  REQUIRE(fcclGetUniqueId(&id) == fcclSuccess);
  fcclComm_t comms[2] = {};
  REQUIRE(fcclGroupStart() == fcclSuccess);
  for (fcclComm_t& comm : comms) CHECK(fcclCommInit(&comm, 2, id, 1, &config) == fcclSuccess);
  config.initTimeoutMs = 2000;
  CHECK(fcclGroupEnd() != fcclSuccess);
  CHECK(comms[0] == nullptr);
  CHECK(comms[1] == nullptr);
}

TEST_CASE("group: splits and windows of several ranks", "[group]") {
  RankGroup group(initInGroup(kRanks));
  std::vector<fcclComm_t> halves(kRanks);
  REQUIRE(fcclGroupStart() == fcclSuccess);
  for (int r = 0; r < kRanks; ++r) {
    REQUIRE(fcclCommSplit(group.comm(r), r % 2, r, &halves[static_cast<size_t>(r)], nullptr) == fcclSuccess);
  }
  REQUIRE(fcclGroupEnd() == fcclSuccess);
  RankGroup half(halves);
  fcclWindow_t windows[kRanks] = {};
  void* blocks[kRanks] = {};
  REQUIRE(fcclGroupStart() == fcclSuccess);
  for (int r = 0; r < kRanks; ++r) {
    REQUIRE(fcclMemAllocOn(&blocks[r], 4096, fcclDeviceHost) == fcclSuccess);
    *static_cast<int32_t*>(blocks[r]) = r + 1;
    REQUIRE(fcclCommWindowRegister(half.comm(r), blocks[r], 4096, &windows[r], 0) == fcclSuccess);
    REQUIRE(windows[r] == nullptr);
  }
  REQUIRE(fcclGroupEnd() == fcclSuccess);
  REQUIRE(fcclGroupStart() == fcclSuccess);
  for (int r = 0; r < kRanks; ++r) {
    REQUIRE(fcclAllReduce(blocks[r], blocks[r], 1, fcclInt32, fcclSum, half.comm(r), nullptr) == fcclSuccess);
  }
  REQUIRE(fcclGroupEnd() == fcclSuccess);
  for (int r = 0; r < kRanks; ++r) CHECK(*static_cast<int32_t*>(blocks[r]) == (r % 2 == 0 ? 4 : 6));
  REQUIRE(fcclGroupStart() == fcclSuccess);
  for (int r = 0; r < kRanks; ++r) {
    REQUIRE(fcclCommWindowDeregister(half.comm(r), windows[r]) == fcclSuccess);
  }
  REQUIRE(fcclGroupEnd() == fcclSuccess);
  for (void* block : blocks) CHECK(fcclMemFree(block) == fcclSuccess);
}
