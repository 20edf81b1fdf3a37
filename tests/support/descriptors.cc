#include "tests/support/descriptors.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace fccl::test {

size_t openDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

size_t mappedLines() {
  std::ifstream maps("/proc/self/maps");
  return static_cast<size_t>(std::count(std::istreambuf_iterator<char>(maps), {}, '\n'));
}

}  // namespace fccl::test
