#include "tests/support/fake_nccl.h"

#include <dlfcn.h>

#include <stdexcept>

namespace fccl::test {
namespace {

constexpr const char* kFile = FCCL_BINARY_DIR "/fake_nccl/libnccl.so.2";

}  // namespace

FakeNccl::FakeNccl() {
  void* const handle = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(dlerror());
  const auto find = [&](const char* name, auto* function) {
    *reinterpret_cast<void**>(function) = dlsym(handle, name);
    if (*function == nullptr) throw std::runtime_error(name);
  };
  find("fakeNcclReset", &reset_);
  find("fakeNcclSetVersion", &setVersion_);
  find("fakeNcclFail", &fail_);
  find("fakeNcclSetAsyncError", &setAsyncError_);
  find("fakeNcclRefuseWindows", &refuseWindows_);
  find("fakeNcclCount", &count_);
  find("fakeNcclLiveComms", &liveComms_);
  find("fakeNcclLiveBytes", &liveBytes_);
  find("fakeNcclLiveWindows", &liveWindows_);
}

std::shared_ptr<const NcclLibrary> FakeNccl::library() const {
  const auto found = NcclLibrary::find(kFile);
  if (!found.ok()) throw std::runtime_error(found.status().message());
  return found.value();
}

const FakeNccl& fake() {
  static const FakeNccl instance;
  return instance;
}

}  // namespace fccl::test
