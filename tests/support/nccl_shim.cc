#include "tests/support/nccl_shim.h"

#include <dlfcn.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/thread_ranks.h"

namespace fccl::test {

Shim::Shim(const char* file) {
  fake();  // is in the process before
  void* const handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(dlerror());
  const auto find = [&](const char* name, auto* function) {
    *reinterpret_cast<void**>(function) = dlsym(handle, name);
    if (*function == nullptr) throw std::runtime_error(name);
  };
  find("ncclGetVersion", &getVersion);
  find("ncclGetUniqueId", &getUniqueId);
  find("ncclCommInitRank", &commInitRank);
  find("ncclCommInitRankConfig", &commInitRankConfig);
  find("ncclCommSplit", &commSplit);
  find("ncclCommFinalize", &commFinalize);
  find("ncclCommDestroy", &commDestroy);
  find("ncclCommAbort", &commAbort);
  find("ncclCommGetAsyncError", &commGetAsyncError);
  find("ncclCommCount", &commCount);
  find("ncclAllReduce", &allReduce);
  find("ncclBroadcast", &broadcast);
  find("ncclRecv", &recv);
  find("ncclGroupStart", &groupStart);
  find("ncclGroupEnd", &groupEnd);
  find("ncclGetErrorString", &getErrorString);
  find("ncclGetLastError", &getLastError);
}

void Shim::withComms(int ranks, const std::function<std::string(int rank, void*& comm)>& body) const {
  NcclUniqueId id{};
  REQUIRE(getUniqueId(&id) == 0);
  std::vector<std::string> wrong(static_cast<size_t>(ranks));
  runThreads(ranks, "the shim", Seconds(40), [&](int rank) {
    void* comm = nullptr;
    std::string& mine = wrong[static_cast<size_t>(rank)];
    if (commInitRank(&comm, ranks, id, rank) != 0) mine = "ncclCommInitRank";
    if (mine.empty()) mine = body(rank, comm);
    if (mine.empty() && comm != nullptr && commDestroy(comm) != 0) mine = "ncclCommDestroy";
  });
  for (const std::string& each : wrong) CHECK(each == "");
}

std::string Shim::sum(int rank, int ranks, void* comm, size_t count) const {
  std::vector<float> data(count, static_cast<float>(rank + 1));
  if (allReduce(data.data(), data.data(), data.size(), fcclFloat32, fcclSum, comm, nullptr) != 0) return "result";
  const auto wanted = static_cast<float>(ranks * (ranks + 1)) / 2;
  return std::all_of(data.begin(), data.end(), [&](float v) { return v == wanted; }) ? "" : "wrong sum";
}

const Shim& shimmed() {
  static const Shim instance(FCCL_BINARY_DIR "/libfccl-nccl.so");
  return instance;
}

const Shim& shimmedOnHost() {
  static const Shim instance(FCCL_BINARY_DIR "/fake_nccl/libfccl-nccl-host.so");
  return instance;
}

}  // namespace fccl::test
