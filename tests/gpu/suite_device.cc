// The suites on a GPU that all ranks share.
#include "tests/support/suite_device.h"

#include <array>

#include "tests/gpu/device_ranks.h"

namespace fccl::test {
namespace {

constexpr int kMostRanks = 8;

// Memory and a stream for each rank, made before any rank's kernel waits for another's.
std::array<RankDevice, kMostRanks>& devices() {
  static std::array<RankDevice, kMostRanks> all;
  return all;
}

std::string missing() {
  if (gpuCount() == 0) return "no CUDA device here";
  devices();
  return "";
}

fcclConfig_t configWith(int slotBytes) {
  fcclConfig_t config = cudaConfig();
  if (slotBytes != 0) config.cudaWorkspaceBytes = 1 << 20;
  return config;
}

fcclResult_t callOnDevice(Rank& rank, FusedBuffers& own) {
  RankDevice& device = devices()[static_cast<size_t>(rank.rank)];
  device.reset();
  DeviceArgs call(device, own.asked(), own);
  device.synchronize();
  const fcclResult_t result = fcclAllReduceFused(&call.args(), rank.comm, device.stream());
  if (result != fcclSuccess) return result;
  call.fetch();
  fcclResult_t async = fcclSuccess;
  fcclCommGetAsyncError(rank.comm, &async);
  return async;
}

[[maybe_unused]] const bool kOnGpu = [] {
  suiteDevice() = {missing, configWith, callOnDevice};
  return true;
}();

}  // namespace
}  // namespace fccl::test
