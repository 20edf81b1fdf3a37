// fcclConfig_t and the environment, resolved into options.
#include <climits>
#include <cstddef>
#include <functional>
#include <string>

#include "lib/config.h"
#include "lib/rank_record.h"
#include "tests/support/catch.h"
#include "tests/support/text.h"

using namespace fccl;
using fccl::test::contains;

namespace {

Options resolved(const fcclConfig_t* config, const Environment& environment = {}, const Options& base = {}) {
  const Result<Options> result = resolveOptions(config, environment, base);
  INFO(result.status().message());
  REQUIRE(result.ok());
  return result.value();
}

}  // namespace

TEST_CASE("config: defaults", "[config]") {
  const fcclConfig_t initializer = FCCL_CONFIG_INITIALIZER;
  for (const fcclConfig_t* config : {static_cast<const fcclConfig_t*>(nullptr), &initializer}) {
    const Options options = resolved(config);
    CHECK(options.deviceType == fcclDeviceAuto);
    CHECK(options.cudaDevice == -1);
    CHECK_FALSE(options.allowSharedDevice);
    CHECK(options.cudaWorkspaceBytes == 64 << 20);
    CHECK(options.cudaMemory == CudaMemoryWay::kAuto);
    CHECK(options.strategy == fcclStrategyAuto);
    CHECK_FALSE(options.checkCalls);
    CHECK(options.timeoutMs == 300'000);
    CHECK(options.initTimeoutMs == 120'000);
    CHECK(options.sharedMemory == fcclSharedMemoryAuto);
    CHECK_FALSE(options.bindCores);
    CHECK(options.slotBytes == 256 << 10);
    CHECK(options.interface.empty());
    CHECK(options.rendezvous.empty());
    CHECK(options.simd == host::bestSimd());
  }
}

TEST_CASE("config: fields, and the environment above them", "[config]") {
  fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
  config.deviceType = fcclDeviceHost;
  config.cudaDevice = 3;
  config.allowSharedDevice = 1;
  config.cudaWorkspaceBytes = 1 << 20;
  config.strategy = fcclStrategyTwoshot;
  config.checkCalls = 1;
  config.timeoutMs = 3000;
  config.initTimeoutMs = 0;
  config.sharedMemory = fcclSharedMemoryPosix;
  config.bindCores = 1;
  config.slotBytes = 5000;
  config.netName = "eth1";
  Options options = resolved(&config);
  CHECK(options.deviceType == fcclDeviceHost);
  CHECK(options.cudaDevice == 3);
  CHECK(options.allowSharedDevice);
  CHECK(options.cudaWorkspaceBytes == 1 << 20);
  CHECK(options.strategy == fcclStrategyTwoshot);
  CHECK(options.checkCalls);
  CHECK(options.timeoutMs == 3000);
  CHECK(options.sharedMemory == fcclSharedMemoryPosix);
  CHECK(options.bindCores);
  CHECK(options.slotBytes == 8192);
  CHECK(options.interface == "eth1");
  // No limit is a limit that nobody lives to see.
  CHECK(options.initTimeout() > std::chrono::hours(24 * 300));
  CHECK(options.bootstrap().interface == "eth1");

  Environment environment;
  environment.strategy = fcclStrategyOneshot;
  environment.checkCalls = false;
  environment.timeoutMs = 7;
  environment.initTimeoutMs = 8;
  environment.sharedMemory = fcclSharedMemoryMemfd;
  environment.bindCores = false;
  environment.slotBytes = 4096;
  environment.socketIfname = "lo";
  environment.commId = "127.0.0.1:4000";
  environment.simd = SimdTarget::kGeneric;
  environment.deviceType = fcclDeviceCuda;
  environment.allowSharedDevice = false;
  environment.cudaWorkspaceBytes = 2 << 20;
  environment.cudaMemory = CudaMemoryWay::kIpc;
  options = resolved(&config, environment);
  CHECK(options.deviceType == fcclDeviceCuda);
  CHECK_FALSE(options.allowSharedDevice);
  CHECK(options.cudaWorkspaceBytes == 2 << 20);
  CHECK(options.cudaMemory == CudaMemoryWay::kIpc);
  CHECK(options.strategy == fcclStrategyOneshot);
  CHECK_FALSE(options.checkCalls);
  CHECK(options.timeoutMs == 7);
  CHECK(options.initTimeout() == std::chrono::milliseconds(8));
  CHECK(options.sharedMemory == fcclSharedMemoryMemfd);
  CHECK_FALSE(options.bindCores);
  CHECK(options.slotBytes == 4096);
  CHECK(options.bootstrap().interface == "lo");
  CHECK(options.bootstrap().rendezvous == "127.0.0.1:4000");
  CHECK(options.simd == host::Simd::kGeneric);
}

TEST_CASE("config: a program of version 3, which ended with nccl", "[config]") {
  fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
  config.tuningFile = "/opt/t.json";
  CHECK(resolved(&config).tuningFile == "/opt/t.json");
  config.version = 3;
  config.size = offsetof(fcclConfig_t, tuningFile);
  config.nccl = 1;
  const Options options = resolved(&config);
  CHECK(options.wantsNccl());
  CHECK(options.tuningFile.empty());
}

TEST_CASE("config: a program of version 2, where nccl was padding", "[config]") {
  fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
  config.version = 2;
  config.size = offsetof(fcclConfig_t, tuningFile);
  config.nccl = 0x55555555;
  config.cudaWorkspaceBytes = 2 << 20;
  const Options options = resolved(&config);
  CHECK_FALSE(options.wantsNccl());
  CHECK(options.cudaWorkspaceBytes == 2 << 20);
}

TEST_CASE("config: NCCL beside the communicator is asked for, or follows from the strategy", "[config]") {
  CHECK_FALSE(resolved(nullptr).wantsNccl());
  fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
  config.nccl = 1;
  CHECK(resolved(&config).wantsNccl());
  Environment environment;
  environment.tuningFile = "/opt/tuning.json";
  CHECK(resolved(&config, environment).tuningFile == "/opt/tuning.json");
  environment.nccl = false;
  environment.ncclLibrary = "/opt/libnccl.so";
  CHECK_FALSE(resolved(&config, environment).wantsNccl());
  CHECK(resolved(&config, environment).ncclLibrary == "/opt/libnccl.so");
  for (const fcclStrategy_t strategy : {fcclStrategyNccl, fcclStrategyNcclSymmetric}) {
    config.strategy = strategy;
    CHECK(resolved(&config, environment).wantsNccl());
  }
}

TEST_CASE("config: a field left undefined keeps the parent's value", "[config]") {
  Options parent;
  parent.timeoutMs = 1234;
  parent.slotBytes = 8192;
  fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
  config.slotBytes = 4096;
  const Options options = resolved(&config, {}, parent);
  CHECK(options.timeoutMs == 1234);
  CHECK(options.slotBytes == 4096);
}

TEST_CASE("config: bad fields are named", "[config]") {
  struct Bad {
    const char* field;
    std::function<void(fcclConfig_t&)> spoil;
  };
  const Bad table[] = {
      {"size", [](fcclConfig_t& c) { c.size = 0; }},
      {"size", [](fcclConfig_t& c) { c.size -= 1; }},
      {"size", [](fcclConfig_t& c) { c.size += 8; }},
      {"magic", [](fcclConfig_t& c) { c.magic = 0; }},
      {"magic", [](fcclConfig_t& c) { c.magic = FCCL_FUSED_ARGS_MAGIC; }},
      {"version", [](fcclConfig_t& c) { c.version = 0; }},
      {"version", [](fcclConfig_t& c) { c.version = FCCL_CONFIG_VERSION + 1; }},
      {"deviceType", [](fcclConfig_t& c) { c.deviceType = 3; }},
      {"deviceType", [](fcclConfig_t& c) { c.deviceType = -2; }},
      {"strategy", [](fcclConfig_t& c) { c.strategy = 9; }},
      {"nccl", [](fcclConfig_t& c) { c.nccl = 2; }},
      {"strategy", [](fcclConfig_t& c) { c.strategy = 7; }},
      {"checkCalls", [](fcclConfig_t& c) { c.checkCalls = 2; }},
      {"timeoutMs", [](fcclConfig_t& c) { c.timeoutMs = -2; }},
      {"initTimeoutMs", [](fcclConfig_t& c) { c.initTimeoutMs = INT_MIN; }},
      {"sharedMemory", [](fcclConfig_t& c) { c.sharedMemory = 3; }},
      {"bindCores", [](fcclConfig_t& c) { c.bindCores = 7; }},
      {"slotBytes", [](fcclConfig_t& c) { c.slotBytes = 0; }},
      {"cudaDevice", [](fcclConfig_t& c) { c.cudaDevice = -2; }},
      {"allowSharedDevice", [](fcclConfig_t& c) { c.allowSharedDevice = 2; }},
      {"cudaWorkspaceBytes", [](fcclConfig_t& c) { c.cudaWorkspaceBytes = (1 << 20) - 1; }},
      {"cudaWorkspaceBytes", [](fcclConfig_t& c) { c.cudaWorkspaceBytes = (1 << 30) + 1; }},
      {"slotBytes", [](fcclConfig_t& c) { c.slotBytes = 4095; }},
      {"slotBytes", [](fcclConfig_t& c) { c.slotBytes = (64 << 20) + 1; }},
  };
  for (const Bad& bad : table) {
    fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
    bad.spoil(config);
    const Result<Options> result = resolveOptions(&config, {}, {});
    INFO(bad.field);
    REQUIRE_FALSE(result.ok());
    CHECK(result.status().code() == fcclInvalidArgument);
    CHECK(contains(result.status().message(), std::string("fcclConfig_t.") + bad.field));
  }
}

TEST_CASE("config: bad environment values are named", "[config]") {
  Environment environment;
  environment.slotBytes = 65 << 20;
  Result<Options> result = resolveOptions(nullptr, environment, {});
  REQUIRE_FALSE(result.ok());
  CHECK(contains(result.status().message(), "FCCL_SLOT_BYTES"));

  environment = {};
  environment.simd = SimdTarget::kAvx512;
  result = resolveOptions(nullptr, environment, {});
  CHECK(result.ok() == host::simdAvailable(host::Simd::kAvx512));
  if (!result.ok()) CHECK(contains(result.status().message(), "FCCL_SIMD"));
}

TEST_CASE("config: records of ranks that do not fit together", "[config]") {
  const RankRecord good = makeRankRecord(resolved(nullptr)).value();
  CHECK(agreeOnRecords(std::vector<RankRecord>{good, good, good}).ok());

  struct Difference {
    const char* words;
    std::function<void(RankRecord&)> change;
  };
  const Difference table[] = {
      {"0.2.3", [](RankRecord& r) { r.version = FCCL_VERSION(0, 2, 3); }},
      {"TWOSHOT", [](RankRecord& r) { r.strategy = fcclStrategyTwoshot; }},
      {"FCCL_CHECK", [](RankRecord& r) { r.checkCalls = 1; }},
      {"posix", [](RankRecord& r) { r.sharedMemory = fcclSharedMemoryPosix; }},
      {"65536", [](RankRecord& r) { r.slotBytes = 65536; }},
      {"machines", [](RankRecord& r) { r.nodeId[0] ^= 1; }},
  };
  for (const Difference& difference : table) {
    std::vector<RankRecord> records(4, good);
    difference.change(records[2]);
    const Status status = agreeOnRecords(records);
    INFO(difference.words << ": " << status.message());
    CHECK(status.code() == fcclInvalidArgument);
    CHECK(contains(status.message(), difference.words));
    CHECK(contains(status.message(), "ank 0"));
    CHECK(contains(status.message(), "rank 2"));
  }
}

TEST_CASE("config: cores and caches of all ranks", "[config]") {
  RankRecord a;
  a.cacheBytes = 8 << 20;
  a.coresPerCache = 4;
  a.cores = {0b0011};
  RankRecord b = a;
  b.cores = {0b1100};
  // Four cores with one cache of 8 MiB for both ranks.
  CHECK(coresOfAll(std::vector<RankRecord>{a, b}) == 4);
  CHECK(cacheBytesPerRank(std::vector<RankRecord>{a, b}) == 4 << 20);
  // The same cores: still two.
  CHECK(coresOfAll(std::vector<RankRecord>{a, a}) == 2);
  // A cache for every two cores.
  a.coresPerCache = b.coresPerCache = 2;
  CHECK(cacheBytesPerRank(std::vector<RankRecord>{a, b}) == 8 << 20);
  // Unknown masks.
  CHECK(coresOfAll(std::vector<RankRecord>{RankRecord(), RankRecord()}) == 1);

  const std::vector<RankRecord> mixed{a, b, a, a};
  CHECK(sameCores(mixed, 0).index == 0);
  CHECK(sameCores(mixed, 0).count == 3);
  CHECK(sameCores(mixed, 1).index == 0);
  CHECK(sameCores(mixed, 1).count == 1);
  CHECK(sameCores(mixed, 3).index == 2);
}

TEST_CASE("config: FCCL_HOSTID says which ranks share a node", "[config]") {
  Environment environment;
  environment.hostId = "left";
  const RankRecord left = makeRankRecord(resolved(nullptr, environment)).value();
  CHECK(std::string(left.nodeId.data()) == "left");
  environment.hostId = "right";
  const RankRecord right = makeRankRecord(resolved(nullptr, environment)).value();
  CHECK(agreeOnRecords(std::vector<RankRecord>{left, left}).ok());
  const Status status = agreeOnRecords(std::vector<RankRecord>{left, right});
  CHECK(contains(status.message(), "FCCL_HOSTID or boot id left and right"));
}

TEST_CASE("config: links between the ranks' GPUs are found by uuid, in a file without uuids by order", "[config]") {
  std::vector<RankRecord> records(3);
  for (size_t r = 0; r < records.size(); r++) {
    records[r].deviceType = fcclDeviceCuda;
    records[r].cudaGeneration = 90;
    records[r].cudaUuid[0] = static_cast<uint8_t>(r + 1);
  }
  const auto text = [](const char* first, const char* second, const char* third) {
    return fmt::format(
        R"({{"format": 1, "nodes": [{{"gpus": [{{"sm": 90{}}}, {{"sm": 90{}}}, {{"sm": 90{}}}], "links": [
      {{"between": "all", "kind": "pcie", "gigabytesPerSecond": 20, "peerAccess": true}},
      {{"between": [0, 1], "kind": "nvlink", "gigabytesPerSecond": 80, "peerAccess": true}}]}}]}})",
        first, second, third);
  };
  const auto linksOf = [&](const std::string& json, int ranks) {
    const std::span<const RankRecord> some(records.data(), static_cast<size_t>(ranks));
    GroupFacts group = groupOf(some);
    addLinks(parseTopology(json, "t").value(), some, &group);
    CHECK(group.sm == 90);
    CHECK(group.peerAccess);
    CHECK(group.nodes == 1);
    return group;
  };
  const std::string noUuids = text("", "", "");
  CHECK(linksOf(noUuids, 2).link == LinkKind::kNvlink);
  CHECK(linksOf(noUuids, 2).gigabytesPerSecond == 80);
  CHECK(linksOf(noUuids, 3).link == LinkKind::kPcie);
  const std::string third = R"(, "uuid": "GPU-02000000-0000-0000-0000-000000000000")";
  const std::string first = R"(, "uuid": "GPU-01000000-0000-0000-0000-000000000000")";
  CHECK(linksOf(text(first.c_str(), "", third.c_str()), 2).link == LinkKind::kPcie);
  CHECK(linksOf(text(first.c_str(), third.c_str(), ""), 2).link == LinkKind::kNvlink);
  // The third rank's GPU is in no file.
  CHECK(linksOf(text(first.c_str(), third.c_str(), ""), 3).link == LinkKind::kSelf);
  // Two ranks on one GPU, and no link between them.
  records[1].cudaUuid = records[0].cudaUuid;
  CHECK(linksOf(noUuids, 2).link == LinkKind::kSelf);
  CHECK(linksOf(noUuids, 2).ranksPerGpu == 2);
  CHECK(linksOf(noUuids, 3).link == LinkKind::kNvlink);
}
