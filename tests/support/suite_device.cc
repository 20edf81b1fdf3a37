#include "tests/support/suite_device.h"

namespace fccl::test {

SuiteDevice& suiteDevice() {
  static SuiteDevice device{[] { return std::string(); }, testConfig, callOnHost};
  return device;
}

}  // namespace fccl::test
