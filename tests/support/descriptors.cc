#include "tests/support/descriptors.h"

#include <filesystem>

namespace fccl::test {

size_t openDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

}  // namespace fccl::test
