// The stand-in for NCCL (tests/fake_nccl) as the NCCL of this process.
#pragma once

#include <memory>

#include "transport/nccl_library.h"

namespace fccl::test {

class FakeNccl {
 public:
  void reset() const { reset_(); }
  void setVersion(int version) const { setVersion_(version); }
  void fail(const char* function, int n, int code) const { fail_(function, n, code); }
  void setAsyncError(int code) const { setAsyncError_(code); }
  void refuseWindows(bool refuse) const { refuseWindows_(refuse ? 1 : 0); }
  int count(const char* function) const { return count_(function); }
  int liveComms() const { return liveComms_(); }
  int liveBytes() const { return liveBytes_(); }
  int liveWindows() const { return liveWindows_(); }
  // As of the version that it pretends to be now.
  std::shared_ptr<const NcclLibrary> library() const;

 private:
  friend const FakeNccl& fake();
  FakeNccl();

  void (*reset_)();
  void (*setVersion_)(int);
  void (*fail_)(const char*, int, int);
  void (*setAsyncError_)(int);
  void (*refuseWindows_)(int);
  int (*count_)(const char*);
  int (*liveComms_)();
  int (*liveBytes_)();
  int (*liveWindows_)();
};

// Loaded when it is first asked for.
const FakeNccl& fake();

}  // namespace fccl::test
