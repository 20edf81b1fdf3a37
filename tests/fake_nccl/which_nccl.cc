// Prints which NCCL this process takes, given FCCL_NCCL_LIB and whatever the loader was told; or why it takes none.
// A library that is named is loaded before, as by an engine.
#include <dlfcn.h>
#include <fmt/format.h>

#include "base/environment.h"
#include "transport/nccl_library.h"

int main(int argc, char** argv) {
  for (int i = 1; i < argc; i++) {
    if (dlopen(argv[i], RTLD_NOW | RTLD_GLOBAL) == nullptr) return fmt::print("{}\n", dlerror()), 3;
  }
  const fccl::Result<fccl::Environment> environment = fccl::Environment::read();
  if (!environment.ok()) return fmt::print("{}\n", environment.status().message()), 2;
  const auto library = fccl::NcclLibrary::find(environment.value().ncclLibrary.value_or(""));
  fmt::print("{}\n", library.ok() ? library.value()->describe() : library.status().message());
  return library.ok() ? 0 : 1;
}
