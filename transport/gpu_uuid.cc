#include "transport/cuda_device.h"

namespace fccl {

std::string describeUuid(const CudaUuid& uuid) {
  std::string text = "GPU";
  for (size_t i = 0; i < uuid.size(); i++) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", uuid[i]);
  }
  return text;
}

}  // namespace fccl
