// NVML as this library reaches it: libnvidia-ml.so.1, loaded when it is first asked, each function looked up by name.
// Any of them may be missing. Tests put functions of their own in their place.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace fccl {

// NVML's structs, as its library lays them out.
struct NvmlPciInfo {
  char legacyBusId[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned deviceId;
  unsigned subsystemId;
  char busId[32];
};
struct NvmlFabricInfo {
  unsigned char clusterUuid[16];
  int status;
  unsigned cliqueId;
  unsigned char state;
};

// NVML's numbers that are used here.
constexpr int kNvmlSuccess = 0;
constexpr int kNvmlMemoryClock = 2;
constexpr int kNvmlLinkEnabled = 1;
constexpr int kNvmlLinkToSwitch = 2;
constexpr int kNvmlP2pRead = 0;
constexpr int kNvmlP2pWrite = 1;
constexpr int kNvmlP2pOk = 0;
constexpr int kNvmlAncestorSystem = 50;  // the way goes over the interconnect of the sockets
constexpr unsigned char kNvmlFabricCompleted = 3;

using NvmlDevice = struct NvmlDeviceOpaque*;

struct Nvml {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned* count) = nullptr;
  int (*byIndex)(unsigned index, NvmlDevice* device) = nullptr;
  int (*uuid)(NvmlDevice, char* text, unsigned bytes) = nullptr;
  int (*name)(NvmlDevice, char* text, unsigned bytes) = nullptr;
  int (*pciInfo)(NvmlDevice, NvmlPciInfo* info) = nullptr;
  int (*computeCapability)(NvmlDevice, int* major, int* minor) = nullptr;
  int (*memoryBusWidth)(NvmlDevice, unsigned* bits) = nullptr;
  int (*maxClock)(NvmlDevice, int type, unsigned* megahertz) = nullptr;
  int (*pcieGeneration)(NvmlDevice, unsigned* generation) = nullptr;
  int (*pcieWidth)(NvmlDevice, unsigned* lanes) = nullptr;
  int (*linkState)(NvmlDevice, unsigned link, int* enabled) = nullptr;
  int (*linkRemoteType)(NvmlDevice, unsigned link, int* type) = nullptr;
  int (*linkRemotePci)(NvmlDevice, unsigned link, NvmlPciInfo* info) = nullptr;
  int (*p2pStatus)(NvmlDevice, NvmlDevice, int capability, int* status) = nullptr;
  int (*commonAncestor)(NvmlDevice, NvmlDevice, int* level) = nullptr;
  int (*fabricInfo)(NvmlDevice, NvmlFabricInfo* info) = nullptr;

  // Of this process; `missing` is why there is none, or empty. Functions that the library lacks are NULL.
  static const Nvml& loaded(std::string* missing);
};

}  // namespace fccl
