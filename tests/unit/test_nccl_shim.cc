// libfccl-nccl.so in front of the stand-in: without a GPU FCCL has no communicator there, and every call must reach
// NCCL as it came. And which calls FCCL would serve.
#include <array>
#include <cstdint>
#include <cstdio>
#include <set>
#include <string>

#include "lib/shim/policy.h"
#include "tests/support/catch.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/nccl_shim.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/text.h"

using namespace fccl;
using namespace fccl::test;
using shim::Policy;

namespace {

constexpr const char* kShim = FCCL_BINARY_DIR "/libfccl-nccl.so";

// What a command that lists symbols prints, a name a line.
std::set<std::string> exported(const std::string& library) {
  FILE* out = popen(("nm -D --defined-only '" + library + "' | awk '{print $3}'").c_str(), "r");
  REQUIRE(out != nullptr);
  std::set<std::string> names;
  for (char line[256]; fgets(line, sizeof line, out) != nullptr;)
    names.emplace(std::string(line).substr(0, std::string(line).find('\n')));
  pclose(out);
  return names;
}

}  // namespace

TEST_CASE("NCCL shim: calls and results pass through, and communicators come and go", "[nccl]") {
  fake().reset();
  int version = 0;
  CHECK(shimmed().getVersion(&version) == 0);
  CHECK(version == 22803);
  shimmed().withComms(3, [](int rank, void*& comm) -> std::string {
    if (std::string wrong = shimmed().sum(rank, 3, comm); !wrong.empty()) return wrong;
    int32_t value = rank;
    if (shimmed().broadcast(&value, &value, 1, fcclInt32, 2, comm, nullptr) != 0 || value != 2) return "broadcast";
    int error = 1;
    if (shimmed().commGetAsyncError(comm, &error) != 0 || error != 0) return "async error";
    return shimmed().commFinalize(comm) == 0 ? "" : "finalize";
  });
  CHECK(fake().count("ncclAllReduce") == 3);
  CHECK(fake().count("ncclBroadcast") == 3);
  CHECK(fake().count("ncclCommFinalize") == 3);
  CHECK(fake().liveComms() == 0);
}

TEST_CASE("NCCL shim: split, with a rank that is left out", "[nccl]") {
  fake().reset();
  shimmed().withComms(5, [](int rank, void*& comm) -> std::string {
    void* child = nullptr;
    const int color = rank == 4 ? -1 : rank % 2;
    if (shimmed().commSplit(comm, color, -rank, &child, nullptr) != 0) return "split";
    if (color < 0) return child == nullptr ? "" : "a communicator for no color";
    int count = 0;
    if (shimmed().commCount(child, &count) != 0 || count != 2) return "count";
    const std::string wrong = shimmed().sum(rank / 2, 2, child);
    return !wrong.empty() ? wrong : shimmed().commDestroy(child) == 0 ? "" : "destroy";
  });
  CHECK(fake().liveComms() == 0);
}

TEST_CASE("NCCL shim: groups, in which one thread drives several ranks", "[nccl]") {
  fake().reset();
  NcclUniqueId id{};
  REQUIRE(shimmed().getUniqueId(&id) == 0);
  std::array<void*, 3> comms{};
  CHECK(shimmed().groupStart() == 0);
  CHECK(shimmed().groupStart() == 0);
  for (int r = 0; r < 3; r++)
    CHECK(shimmed().commInitRankConfig(&comms[static_cast<size_t>(r)], 3, id, r, nullptr) == 0);
  CHECK(shimmed().groupEnd() == 0);
  CHECK(comms[0] == nullptr);
  CHECK(shimmed().groupEnd() == 0);
  std::array<float, 3> values{1, 2, 4};
  CHECK(shimmed().groupStart() == 0);
  for (size_t r = 0; r < 3; r++) {
    CHECK(shimmed().allReduce(&values[r], &values[r], 1, fcclFloat32, fcclSum, comms[r], nullptr) == 0);
  }
  CHECK(values[0] == 1);
  CHECK(shimmed().groupEnd() == 0);
  CHECK(values == std::array<float, 3>{7, 7, 7});
  for (void* comm : comms) CHECK(shimmed().commAbort(comm) == 0);
  CHECK(fake().count("ncclGroupStart") == 3);
  CHECK(fake().count("ncclGroupEnd") == 3);
  CHECK(fake().liveComms() == 0);
}

TEST_CASE("NCCL shim: errors come as NCCL gives them", "[nccl]") {
  fake().reset();
  NcclUniqueId id{};
  REQUIRE(shimmed().getUniqueId(&id) == 0);
  void* comm = nullptr;
  fake().fail("ncclCommInitRank", 1, 2);
  CHECK(shimmed().commInitRank(&comm, 1, id, 0) == 2);
  CHECK(shimmed().commInitRank(&comm, 1, id, 0) == 0);
  float value = 1;
  fake().fail("ncclAllReduce", 1, 6);
  CHECK(shimmed().allReduce(&value, &value, 1, fcclFloat32, fcclSum, comm, nullptr) == 6);
  CHECK(contains(shimmed().getLastError(comm), "fake failure of ncclAllReduce"));
  CHECK(std::string(shimmed().getErrorString(6)) == "fake error");
  fake().setAsyncError(6);
  int error = 0;
  CHECK(shimmed().commGetAsyncError(comm, &error) == 0);
  CHECK(error == 6);
  // A function that the NCCL behind does not have.
  CHECK(shimmed().recv(&value, 1, fcclFloat32, 0, comm, nullptr) == fcclInvalidUsage);
  CHECK(shimmed().commDestroy(comm) == 0);
}

TEST_CASE("NCCL shim: FCCL_NCCL_SHIM=0 leaves everything to NCCL", "[nccl]") {
  fake().reset();
  const ScopedVariable off("FCCL_NCCL_SHIM", "0");
  shimmed().withComms(2, [](int rank, void*& comm) { return shimmed().sum(rank, 2, comm); });
  // Nothing of FCCL's: its bootstrap would ask for these.
  CHECK(fake().count("ncclAllGather") + fake().count("ncclCommUserRank") == 0);
}

TEST_CASE("NCCL shim: what FCCL may serve", "[nccl]") {
  const Policy on;
  const auto bytes = [&](const Policy& policy, size_t count, int dtype) {
    return policy.mayServe(2, count, dtype, fcclSum);
  };
  CHECK(bytes(on, 1, fcclBfloat16));
  CHECK(bytes(on, 128 << 10, fcclBfloat16));
  CHECK_FALSE(bytes(on, (128 << 10) + 1, fcclBfloat16));
  CHECK(bytes(on, 64 << 10, fcclFloat32));
  CHECK_FALSE(bytes(on, (64 << 10) + 1, fcclFloat32));
  CHECK_FALSE(bytes(on, 0, fcclFloat32));
  CHECK_FALSE(bytes(on, SIZE_MAX, fcclFloat32));
  for (const int dtype : {0, 1, 2, 3, 4, 5, 8, 10, 11}) CHECK_FALSE(bytes(on, 16, dtype));
  // 5 on: operators of the caller's own.
  for (const int op : {1, 2, 3, 4, 5, 1000}) CHECK_FALSE(on.mayServe(2, 16, fcclFloat32, op));
  CHECK_FALSE(on.mayServe(1, 16, fcclFloat32, fcclSum));
  CHECK(Policy{NcclShim::kAlways}.mayServe(1, 16, fcclFloat32, fcclSum));
  CHECK_FALSE(bytes(Policy{NcclShim::kOff}, 16, fcclFloat32));
  CHECK(bytes(Policy{NcclShim::kOn, 64 << 20}, 16 << 20, fcclFloat32));
  CHECK_FALSE(bytes(Policy{NcclShim::kOn, 0}, 1, fcclFloat32));
}

TEST_CASE("NCCL shim: exports NCCL's names and no others", "[nccl]") {
  std::set<std::string> names = exported(kShim);
  CHECK(names.erase("fcclNcclShim") == 1);
  for (const std::string& name : names) {
    INFO(name);
    CHECK(name.starts_with("nccl"));
  }
  // What NCCL 2.19 has.
  for (const char* name : {"ncclAllGather",
                           "ncclAllReduce",
                           "ncclBcast",
                           "ncclBroadcast",
                           "ncclCommAbort",
                           "ncclCommCount",
                           "ncclCommCuDevice",
                           "ncclCommDeregister",
                           "ncclCommDestroy",
                           "ncclCommFinalize",
                           "ncclCommGetAsyncError",
                           "ncclCommInitAll",
                           "ncclCommInitRank",
                           "ncclCommInitRankConfig",
                           "ncclCommRegister",
                           "ncclCommSplit",
                           "ncclCommUserRank",
                           "ncclGetErrorString",
                           "ncclGetLastError",
                           "ncclGetUniqueId",
                           "ncclGetVersion",
                           "ncclGroupEnd",
                           "ncclGroupStart",
                           "ncclMemAlloc",
                           "ncclMemFree",
                           "ncclRecv",
                           "ncclRedOpCreatePreMulSum",
                           "ncclRedOpDestroy",
                           "ncclReduce",
                           "ncclReduceScatter",
                           "ncclSend"}) {
    INFO(name);
    CHECK(names.contains(name));
  }
}
