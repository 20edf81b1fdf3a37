// The NCCL library as it is found at run time: no header of NCCL is needed to build, none of its types leaves these
// files. One process may hold one copy only, so the copy that an engine has already loaded comes first.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/status.h"

namespace fccl {

// NCCL's ABI, the same from 2.19 on. Its results, data types and operators have the numbers that fccl.h has.
namespace nccl {
using Comm = struct Opaque*;
using Window = struct OpaqueWindow*;
using Code = int;  // ncclResult_t
struct UniqueId {
  char bytes[128];
};
constexpr const char* kSoname = "libnccl.so.2";
constexpr int kSymmetricWindow = 1;  // NCCL_WIN_COLL_SYMMETRIC
constexpr size_t kWindowAlignment = 4096;

constexpr int version(int major, int minor, int patch = 0) { return major * 10000 + minor * 100 + patch; }
constexpr int kOldest = version(2, 19);
std::string versionText(int version);  // "2.28.3"
}  // namespace nccl

// What not every NCCL has.
enum class NcclFeature { kSymmetricWindows };

class NcclLibrary {
 public:
  // In this order: the copy that is in the process already (as libnccl.so.2, or linked into something else), then
  // `wish` (FCCL_NCCL_LIB, a path or a name; empty: none), then libnccl.so.2 as the loader finds it. It stays loaded.
  // fcclSystemError says what was looked for, or what is wrong with the copy that was found.
  static Result<std::shared_ptr<const NcclLibrary>> find(const std::string& wish);

  // As nccl::version() has it.
  int version() const { return version_; }
  // "NCCL 2.28.3 (/usr/lib/libnccl.so.2)"
  std::string describe() const;
  // Success, or fcclInvalidUsage with the version that `what` needs and the one that is there.
  Status need(NcclFeature feature, const char* what) const;

  // Success for 0. Else NCCL's code, which is fccl.h's number too, and a sentence with NCCL's own words. `comm` may be
  // NULL.
  Status check(const char* function, nccl::Code code, nccl::Comm comm) const;

  struct Functions {
    nccl::Code (*getVersion)(int*);
    nccl::Code (*getUniqueId)(nccl::UniqueId*);
    nccl::Code (*commInitRank)(nccl::Comm*, int, nccl::UniqueId, int);
    nccl::Code (*commDestroy)(nccl::Comm);
    nccl::Code (*commAbort)(nccl::Comm);
    nccl::Code (*commGetAsyncError)(nccl::Comm, nccl::Code*);
    nccl::Code (*commCount)(nccl::Comm, int*);
    nccl::Code (*commUserRank)(nccl::Comm, int*);
    nccl::Code (*commCuDevice)(nccl::Comm, int*);
    nccl::Code (*allReduce)(const void*, void*, size_t, int dtype, int op, nccl::Comm, fcclStream_t);
    nccl::Code (*allGather)(const void*, void*, size_t, int dtype, nccl::Comm, fcclStream_t);
    nccl::Code (*memAlloc)(void**, size_t);
    nccl::Code (*memFree)(void*);
    const char* (*getErrorString)(nccl::Code);
    const char* (*getLastError)(nccl::Comm);
    // NULL where the version has none.
    nccl::Code (*commWindowRegister)(nccl::Comm, void*, size_t, nccl::Window*, int);
    nccl::Code (*commWindowDeregister)(nccl::Comm, nccl::Window);
  };
  const Functions& functions() const { return functions_; }

 private:
  NcclLibrary() = default;
  Status lookUp(void* handle);

  Functions functions_{};
  int version_ = 0;
  std::string path_;
};

}  // namespace fccl
