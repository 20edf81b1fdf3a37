// HOST or CUDA: what is chosen where there is a GPU and where there is none, and what is said.
#include <cstdlib>
#include <string>

#include "fccl.h"
#include "lib/config.h"
#include "lib/rank_record.h"
#include "tests/support/catch.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/text.h"
#include "tests/support/thread_ranks.h"
#include "transport/cuda_device.h"
#include "tuner/strategies.h"

using namespace fccl;
using fccl::test::contains;
using fccl::test::ScopedVariable;

namespace {

Options optionsFor(fcclDeviceType_t device) {
  Options options;
  options.deviceType = device;
  return options;
}

}  // namespace

TEST_CASE("device: AUTO is CUDA where a GPU is usable, else HOST", "[device]") {
  const bool usable = usableCudaDevice(-1).ok();
  Options options = optionsFor(fcclDeviceAuto);
  REQUIRE(chooseDevice(&options).ok());
  CHECK(options.deviceType == (usable ? fcclDeviceCuda : fcclDeviceHost));
  CHECK((options.cudaDevice >= 0) == usable);
  options = optionsFor(fcclDeviceHost);
  REQUIRE(chooseDevice(&options).ok());
  CHECK(options.deviceType == fcclDeviceHost);
  CHECK(options.cudaDevice == -1);
}

TEST_CASE("device: without a usable GPU, who asks for CUDA is told why", "[device]") {
  if (usableCudaDevice(-1).ok()) FCCL_SKIP("there is a GPU here");
  Options options = optionsFor(fcclDeviceCuda);
  const Status status = chooseDevice(&options);
  REQUIRE_FALSE(status.ok());
  INFO(status.message());
  CHECK(contains(status.message(), "deviceType is CUDA"));
  CHECK((contains(status.message(), "driver") || contains(status.message(), "no NVIDIA GPU") ||
         contains(status.message(), "toolkit")));

  fcclUniqueId id;
  REQUIRE(fcclGetUniqueId(&id) == fcclSuccess);
  fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
  config.deviceType = fcclDeviceCuda;
  fcclComm_t comm = nullptr;
  CHECK(fcclCommInit(&comm, 1, id, 0, &config) == status.code());
  CHECK(comm == nullptr);
  CHECK(contains(fcclGetLastError(nullptr), status.message()));
  CHECK(fcclCommInitAll(&comm, 1, &config) == status.code());
  void* block = &id;
  CHECK(fcclMemAllocOn(&block, 4096, fcclDeviceCuda) == status.code());
  CHECK(block == nullptr);

  // AUTO goes on with HOST.
  const ScopedVariable automatic("FCCL_DEVICE", "auto");
  REQUIRE(fcclCommInit(&comm, 1, id, 0, nullptr) == fcclSuccess);
  int device = 5;
  CHECK(fcclCommDevice(comm, &device) == fcclSuccess);
  CHECK(device == -1);
  CHECK(fcclCommDestroy(comm) == fcclSuccess);
  const ScopedVariable cuda("FCCL_DEVICE", "cuda");
  CHECK(fcclMemAlloc(&block, 4096) == status.code());
  CHECK(fcclMemAllocOn(&block, 4096, fcclDeviceHost) == fcclSuccess);
  static_cast<char*>(block)[4095] = 1;
  CHECK(fcclMemFree(block) == fcclSuccess);
}

TEST_CASE("device: FCCL_DEVICE=host gives HOST on every machine", "[device]") {
  const ScopedVariable variable("FCCL_DEVICE", "host");
  fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
  config.deviceType = fcclDeviceCuda;
  fcclComm_t comms[2] = {};
  REQUIRE(fcclCommInitAll(comms, 2, &config) == fcclSuccess);
  test::RankGroup group(std::vector<fcclComm_t>(comms, comms + 2));
  int device = 5;
  CHECK(fcclCommDevice(comms[0], &device) == fcclSuccess);
  CHECK(device == -1);
  void* block = nullptr;
  REQUIRE(fcclMemAlloc(&block, 64) == fcclSuccess);
  CHECK(static_cast<char*>(block)[63] == 0);
  CHECK(fcclMemFree(block) == fcclSuccess);
}

TEST_CASE("device: a number that is no device type", "[device]") {
  void* block = nullptr;
  CHECK(fcclMemAllocOn(&block, 64, static_cast<fcclDeviceType_t>(3)) == fcclInvalidArgument);
  CHECK(contains(fcclGetLastError(nullptr), "deviceType"));
}

TEST_CASE("device: two ranks on one GPU are refused by name, unless they are allowed to be", "[device]") {
  RankRecord record = makeRankRecord(optionsFor(fcclDeviceHost)).value();
  record.deviceType = fcclDeviceCuda;
  std::vector<RankRecord> records(4, record);
  for (size_t r = 0; r < records.size(); r++) records[r].cudaUuid[3] = static_cast<uint8_t>(r);
  CHECK(agreeOnRecords(records).ok());
  CHECK(ranksPerDevice(records) == 1);

  records[3].cudaUuid = records[1].cudaUuid;
  CHECK(ranksPerDevice(records) == 2);
  const Status status = agreeOnRecords(records);
  CHECK(status.code() == fcclInvalidUsage);
  INFO(status.message());
  for (const char* word : {"Rank 1", "rank 3", "same GPU", "FCCL_ALLOW_SHARED_DEVICE=1"}) {
    CHECK(contains(status.message(), word));
  }
  for (RankRecord& each : records) each.allowSharedDevice = 1;
  CHECK(agreeOnRecords(records).ok());
  // HOST ranks have no GPU to share.
  for (RankRecord& each : records) each.deviceType = fcclDeviceHost;
  for (RankRecord& each : records) each.allowSharedDevice = 0;
  CHECK(agreeOnRecords(records).ok());
  CHECK(ranksPerDevice(records) == 1);
}

TEST_CASE("device: what the rows of the registry can do on CUDA", "[device]") {
  Facts facts;
  facts.device = fcclDeviceCuda;
  facts.ranks = 4;
  Query query;
  query.dtype = fcclBfloat16;
  query.norm = true;
  query.rows = 64;
  query.cols = 8192;
  for (const StrategyRow& row : strategies()) {
    INFO(row.name);
    const Reason reason = row.eligible(query, facts);
    CHECK(reason.empty() == (row.id != fcclStrategyUb && !isNccl(row.id)));
    if (!reason.empty()) continue;
    const Plan plan = row.plan(query, facts);
    CHECK(plan.strategy == row.id);
    // Three epochs, each with at least the rows of the call and the rows that come back; of bf16's 128 bytes
    // LOWPRECISION sends 66.
    const size_t plain = size_t{3} * 2 * 64 * 8192 * 2;
    CHECK(row.workspace(query, facts) >= (row.id == fcclStrategyLowPrecision ? plain * 66 / 128 : plain));
  }
  CHECK(notOnDevice(query, facts).empty());
  query.dtype = fcclInt32;
  CHECK(contains(notOnDevice(query, facts), "not on CUDA yet"));
  query.dtype = fcclFloat32;
  query.op = fcclAvg;
  CHECK(contains(notOnDevice(query, facts), "not on CUDA yet"));
  facts.device = fcclDeviceHost;
  CHECK(notOnDevice(query, facts).empty());
}
