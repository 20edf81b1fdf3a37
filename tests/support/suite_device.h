// The tests of tests/suites are part of the unit tests, where they run on HOST, and of the GPU tests, where the same
// tests run on communicators and buffers of a GPU.
#pragma once

#include <string>

#include "tests/support/catch.h"
#include "tests/support/fused_case.h"

namespace fccl::test {

struct SuiteDevice {
  // Empty, or why there is no such device here.
  std::string (*missing)();
  // testConfig() for it; `slotBytes` asks for staging areas of this size, or the smallest there are.
  fcclConfig_t (*config)(int slotBytes);
  FusedCall call;
};

// HOST, where a program does not put another in its place.
SuiteDevice& suiteDevice();

inline fcclConfig_t suiteConfig(int slotBytes = 0) { return suiteDevice().config(slotBytes); }

}  // namespace fccl::test

// The first line of every test of a suite.
#define FCCL_NEED_SUITE_DEVICE()                                                                                    \
  do {                                                                                                              \
    if (const std::string missing_ = ::fccl::test::suiteDevice().missing(); !missing_.empty()) FCCL_SKIP(missing_); \
  } while (0)
