#include "tests/support/host_memory_checks.h"

#include <fmt/format.h>

#include <chrono>

#include "tests/support/text.h"

namespace fccl::test {

const char* kindOf(fcclSharedMemory_t provider) { return provider == fcclSharedMemoryPosix ? "posix" : "memfd"; }

char valueOf(int rank, size_t i) { return static_cast<char>(rank * 37 + static_cast<int>(i * i / 7) + 1); }

HostMemoryOptions with(fcclSharedMemory_t provider) {
  HostMemoryOptions options;
  options.provider = provider;
  options.timeout = std::chrono::seconds(20);
  return options;
}

std::string checkContents(Bootstrap& bootstrap, const SymmetricMemory& memory) {
  char* own = memory.peer(bootstrap.rank());
  for (size_t i = 0; i < memory.bytes(); ++i) {
    if (own[i] != 0) return fmt::format("byte {} is not zero at the start", i);
  }
  for (size_t i = 0; i < memory.bytes(); ++i) own[i] = valueOf(bootstrap.rank(), i);
  if (Status status = bootstrap.barrier(); !status.ok()) return status.message();
  for (int r = 0; r < bootstrap.ranks(); ++r) {
    for (size_t i = 0; i < memory.bytes(); ++i) {
      if (memory.peer(r)[i] != valueOf(r, i)) return fmt::format("byte {} of rank {} is wrong", i, r);
    }
    if (!memory.alive(r)) return fmt::format("rank {} is called dead", r);
  }
  if (Status status = bootstrap.barrier(); !status.ok()) return status.message();
  return "";
}

std::string createAndCheck(Bootstrap& bootstrap, fcclSharedMemory_t provider, std::string_view kind, size_t bytes) {
  Result<std::unique_ptr<SymmetricMemory>> memory = createHostMemory(bootstrap, bytes, with(provider));
  if (!memory.ok()) return memory.status().message();
  if (!contains(memory.value()->kind(), kind)) return memory.value()->kind();
  return checkContents(bootstrap, *memory.value());
}

std::string expectFailure(const Status& status, fcclResult_t code, std::initializer_list<std::string_view> parts) {
  if (status.code() != code) return fmt::format("result is {} ({})", static_cast<int>(status.code()), status.message());
  for (const std::string_view part : parts) {
    if (!contains(status.message(), part)) return fmt::format("'{}' does not say '{}'", status.message(), part);
  }
  return "";
}

}  // namespace fccl::test
