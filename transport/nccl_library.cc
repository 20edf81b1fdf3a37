#include "transport/nccl_library.h"

#include <dlfcn.h>

#include <array>

#include "base/check.h"
#include "base/log.h"

namespace fccl {
namespace {

constexpr const char* kCure = "Install NCCL 2.19 or newer, or name its file by FCCL_NCCL_LIB.";

struct Feature {
  const char* name;
  int since;
};
constexpr std::array<Feature, 1> kFeatures{{{"symmetric windows", nccl::version(2, 27)}}};

// Up to 2.8 the major version was counted in thousands.
int inTenThousands(int version) {
  return version < 10000 ? nccl::version(version / 1000, version / 100 % 10, version % 100) : version;
}

std::string fileOf(const void* function) {
  Dl_info info{};
  return dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "?";
}

template <class Function>
bool find(void* handle, const char* name, Function* function) {
  *reinterpret_cast<void**>(function) = dlsym(handle, name);
  return *function != nullptr;
}

std::string loaderError() {
  const char* text = dlerror();
  return text != nullptr ? text : "the loader does not say why";
}

// A handle for dlsym() in `*handle`; false where no copy is in the process. An NCCL that is linked into something else
// has no handle of its own, only names that everybody sees.
bool inProcess(void** handle) {
  *handle = dlopen(nccl::kSoname, RTLD_NOW | RTLD_NOLOAD);
  if (*handle != nullptr) return true;
  (void)dlerror();
  *handle = RTLD_DEFAULT;
  // FCCL's own shim (lib/shim) is no NCCL.
  return dlsym(RTLD_DEFAULT, "fcclNcclShim") == nullptr && dlsym(RTLD_DEFAULT, "ncclAllReduce") != nullptr;
}

}  // namespace

std::string nccl::versionText(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

Result<std::shared_ptr<const NcclLibrary>> NcclLibrary::find(const std::string& wish) {
  std::shared_ptr<NcclLibrary> library(new NcclLibrary());
  void* handle = nullptr;
  const bool there = inProcess(&handle);
  if (!there && !wish.empty()) {
    handle = dlopen(wish.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      return failure(fcclSystemError, "FCCL_NCCL_LIB is '{}', which cannot be loaded: {}.", wish, loaderError());
    }
  } else if (!there) {
    handle = dlopen(nccl::kSoname, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      return failure(fcclSystemError, "there is no NCCL: {} is not in this process, and cannot be loaded: {}. {}",
                     nccl::kSoname, loaderError(), kCure);
    }
  }
  FCCL_TRY(library->lookUp(handle));
  if (there && !wish.empty()) {
    FCCL_INFO("FCCL_NCCL_LIB is not looked at, since {} is in this process already.", library->describe());
  }
  return std::shared_ptr<const NcclLibrary>(std::move(library));
}

Status NcclLibrary::lookUp(void* handle) {
  Functions& f = functions_;
  if (!fccl::find(handle, "ncclGetVersion", &f.getVersion)) {
    return failure(fcclSystemError, "what was found as NCCL has no ncclGetVersion. {}", kCure);
  }
  path_ = fileOf(reinterpret_cast<const void*>(f.getVersion));
  int version = 0;
  if (const nccl::Code code = f.getVersion(&version); code != 0) {
    return failure(fcclSystemError, "ncclGetVersion of {} failed with {}.", path_, code);
  }
  version_ = inTenThousands(version);
  if (version_ < nccl::kOldest) {
    return failure(fcclSystemError, "{} is too old: FCCL needs {} or newer. {}", describe(),
                   nccl::versionText(nccl::kOldest), kCure);
  }
  const char* missing = nullptr;
  const auto need = [&](const char* name, auto* function) {
    if (!fccl::find(handle, name, function) && missing == nullptr) missing = name;
  };
  need("ncclGetUniqueId", &f.getUniqueId);
  need("ncclCommInitRank", &f.commInitRank);
  need("ncclCommDestroy", &f.commDestroy);
  need("ncclCommAbort", &f.commAbort);
  need("ncclCommGetAsyncError", &f.commGetAsyncError);
  need("ncclCommCount", &f.commCount);
  need("ncclCommUserRank", &f.commUserRank);
  need("ncclCommCuDevice", &f.commCuDevice);
  need("ncclAllReduce", &f.allReduce);
  need("ncclAllGather", &f.allGather);
  need("ncclMemAlloc", &f.memAlloc);
  need("ncclMemFree", &f.memFree);
  need("ncclGetErrorString", &f.getErrorString);
  need("ncclGetLastError", &f.getLastError);
  if (this->need(NcclFeature::kSymmetricWindows, "").ok()) {
    need("ncclCommWindowRegister", &f.commWindowRegister);
    need("ncclCommWindowDeregister", &f.commWindowDeregister);
  }
  if (missing == nullptr) return {};
  return failure(fcclSystemError, "{} has no {}, as every NCCL of that version has. {}", describe(), missing, kCure);
}

std::string NcclLibrary::describe() const { return fmt::format("NCCL {} ({})", nccl::versionText(version_), path_); }

Status NcclLibrary::need(NcclFeature feature, const char* what) const {
  const Feature& wanted = kFeatures[static_cast<size_t>(feature)];
  if (version_ >= wanted.since) return {};
  return failure(fcclInvalidUsage, "{} needs {}, which NCCL has from {} on, and this process has {}.", what,
                 wanted.name, nccl::versionText(wanted.since), describe());
}

Status NcclLibrary::check(const char* function, nccl::Code code, nccl::Comm comm) const {
  if (code == 0) return {};
  constexpr nccl::Code kLast = fcclInProgress;
  const fcclResult_t result = code > 0 && code <= kLast ? static_cast<fcclResult_t>(code) : fcclInternalError;
  const char* text = functions_.getErrorString(code);
  const char* last = functions_.getLastError(comm);
  std::string words = text != nullptr ? text : "an unknown error";
  if (last != nullptr && *last != '\0') words += fmt::format(": {}", last);
  while (!words.empty() && (words.back() == '\n' || words.back() == '.')) words.pop_back();
  return failure(result, "{} of {} failed with {}: {}.", function, describe(), code, words);
}

}  // namespace fccl
