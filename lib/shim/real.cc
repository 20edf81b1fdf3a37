#include "lib/shim/real.h"

#include <dlfcn.h>

#include <mutex>
#include <string>
#include <unordered_map>

#include "base/environment.h"
#include "transport/nccl_library.h"

namespace fccl::shim {
namespace {

// A cache that says so: what was found stays, what was not is looked for again.
struct Found {
  std::mutex mutex;
  void* library = nullptr;
  std::unordered_map<std::string, void*> functions;
};
Found& found() {
  static Found instance;
  return instance;
}

// In the order of NcclLibrary::find(). RTLD_NEXT: an NCCL that is linked into something else, behind the shim.
void* lookUp(Found& found, const char* name) {
  if (found.library == nullptr) found.library = dlopen(nccl::kSoname, RTLD_NOW | RTLD_NOLOAD);
  if (found.library == nullptr) {
    if (void* next = dlsym(RTLD_NEXT, name); next != nullptr) return next;
    const Result<Environment> environment = Environment::read();
    const std::string wish = environment.ok() ? environment.value().ncclLibrary.value_or(nccl::kSoname) : nccl::kSoname;
    found.library = dlopen(wish.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  return found.library != nullptr ? dlsym(found.library, name) : nullptr;
}

}  // namespace

void* findReal(const char* name) {
  Found& cache = found();
  const std::lock_guard lock(cache.mutex);
  void*& function = cache.functions[name];
  if (function == nullptr) function = lookUp(cache, name);
  return function;
}

}  // namespace fccl::shim
