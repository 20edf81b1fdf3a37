#include "transport/nvml.h"

#include <dlfcn.h>

namespace fccl {
namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";

struct Loaded {
  Nvml nvml;
  std::string missing;
};

Loaded load() {
  Loaded result;
  // Kept for the life of the process: NVML starts threads of its own.
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    result.missing = fmt::format("{} is not on this machine (no NVIDIA driver)", kLibrary);
    return result;
  }
  const auto find = [&](const char* name, auto* target) {
    *target = reinterpret_cast<std::remove_pointer_t<decltype(target)>>(::dlsym(library, name));
  };
  Nvml& nvml = result.nvml;
  find("nvmlInit_v2", &nvml.init);
  find("nvmlShutdown", &nvml.shutdown);
  find("nvmlDeviceGetCount_v2", &nvml.count);
  find("nvmlDeviceGetHandleByIndex_v2", &nvml.byIndex);
  find("nvmlDeviceGetUUID", &nvml.uuid);
  find("nvmlDeviceGetName", &nvml.name);
  find("nvmlDeviceGetPciInfo_v3", &nvml.pciInfo);
  find("nvmlDeviceGetCudaComputeCapability", &nvml.computeCapability);
  find("nvmlDeviceGetMemoryBusWidth", &nvml.memoryBusWidth);
  find("nvmlDeviceGetMaxClockInfo", &nvml.maxClock);
  find("nvmlDeviceGetMaxPcieLinkGeneration", &nvml.pcieGeneration);
  find("nvmlDeviceGetMaxPcieLinkWidth", &nvml.pcieWidth);
  find("nvmlDeviceGetNvLinkState", &nvml.linkState);
  find("nvmlDeviceGetNvLinkRemoteDeviceType", &nvml.linkRemoteType);
  find("nvmlDeviceGetNvLinkRemotePciInfo_v2", &nvml.linkRemotePci);
  find("nvmlDeviceGetP2PStatus", &nvml.p2pStatus);
  find("nvmlDeviceGetTopologyCommonAncestor", &nvml.commonAncestor);
  find("nvmlDeviceGetGpuFabricInfo", &nvml.fabricInfo);
  return result;
}

}  // namespace

const Nvml& Nvml::loaded(std::string* missing) {
  static const Loaded result = load();
  *missing = result.missing;
  return result.nvml;
}

}  // namespace fccl
