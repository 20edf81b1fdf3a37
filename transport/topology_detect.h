// Detection in parts, so that tests can put a machine of their own in the place of this one.
#pragma once

#include "transport/nvml.h"
#include "transport/topology.h"

namespace fccl {

// What NVML does not tell of a GPU: libcuda.so.1, loaded when it is first asked, independent of the CUDA toolkit. Any
// function may be missing.
struct DriverQueries {
  int (*init)(unsigned flags) = nullptr;
  int (*count)(int* count) = nullptr;
  int (*byIndex)(int* device, int index) = nullptr;
  int (*uuid)(unsigned char* bytes16, int device) = nullptr;
  int (*attribute)(int* value, int attribute, int device) = nullptr;

  static const DriverQueries& loaded(std::string* missing);
};
constexpr int kDriverMulticastSupported = 132;  // CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED

// Fills in the GPUs of `node` and what lies between them. `sysfs`: "/sys". Sentences on what is missing go to `notes`.
void detectGpus(const Nvml& nvml, const std::string& sysfs, TopologyNode* node, std::vector<std::string>* notes);
// Multicast of the GPUs of `node` that this process sees; after detectGpus.
void detectMulticast(const DriverQueries& driver, TopologyNode* node, std::vector<std::string>* notes);

}  // namespace fccl
