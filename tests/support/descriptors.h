// For tests that nothing leaks.
#pragma once

#include <cstddef>

namespace fccl::test {

// Descriptors that this process has open, the one that counts them included.
size_t openDescriptors();

// Lines of /proc/self/maps.
size_t mappedLines();

}  // namespace fccl::test
