// The look at every path between two ranks when a communicator is made: it passes where memory is memory, and names the
// pair where it is not.
#include <functional>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/host_memory_checks.h"
#include "tests/support/local_ranks.h"
#include "transport/path_check.h"

using namespace fccl;
using namespace fccl::test;

namespace {

constexpr int kRanks = 4;
constexpr size_t kBytes = 300'000;  // 64 KiB for each rank, and more

// Memory that is not what it says on this rank: rank `strayed`'s part is somewhere else.
class StrayMemory : public SymmetricMemory {
 public:
  StrayMemory(const SymmetricMemory& memory, int strayed)
      : memory_(memory), strayed_(strayed), elsewhere_(memory.bytes()) {}
  char* peer(int r) const override { return r == strayed_ ? elsewhere_.data() : memory_.peer(r); }
  size_t bytes() const override { return memory_.bytes(); }
  bool alive(int r) const override { return memory_.alive(r); }
  const char* kind() const override { return memory_.kind(); }

 private:
  const SymmetricMemory& memory_;
  int strayed_;
  mutable std::vector<char> elsewhere_;
};

// Flips one bit as soon as all ranks have written.
class FlippingBootstrap : public Bootstrap {
 public:
  FlippingBootstrap(Bootstrap& bootstrap, char* at) : bootstrap_(bootstrap), at_(at) {}
  int rank() const override { return bootstrap_.rank(); }
  int ranks() const override { return bootstrap_.ranks(); }
  Status allGather(void* all, size_t bytes) override { return bootstrap_.allGather(all, bytes); }
  Status barrier() override {
    *at_ = static_cast<char>(*at_ ^ 16);
    return bootstrap_.barrier();
  }
  Status agree(const Status& mine) override { return bootstrap_.agree(mine); }
  void abort() override { bootstrap_.abort(); }

 private:
  Bootstrap& bootstrap_;
  char* at_;
};

using Check = std::function<std::string(Bootstrap& bootstrap, const SymmetricMemory& memory)>;

// As threads, and as processes over each provider.
void onAllKinds(const Check& check) {
  const auto body = [&](Bootstrap& bootstrap, fcclSharedMemory_t provider) -> std::string {
    auto memory = createHostMemory(bootstrap, kBytes, with(provider));
    return memory.ok() ? check(bootstrap, *memory.value()) : memory.status().message();
  };
  for (const fcclSharedMemory_t provider : {fcclSharedMemoryMemfd, fcclSharedMemoryPosix}) {
    ForkedRanks processes(oneRankEach(kRanks), [&](int, Bootstrap& bootstrap) { return body(bootstrap, provider); });
    CHECK(processes.wait() == "");
  }
  CHECK(runOnThreads(kRanks, [&](int, Bootstrap& bootstrap) { return body(bootstrap, fcclSharedMemoryAuto); }) == "");
}

}  // namespace

TEST_CASE("path check: passes and leaves the memory zeroed") {
  onAllKinds([](Bootstrap& bootstrap, const SymmetricMemory& memory) -> std::string {
    if (const Status status = checkPaths(bootstrap, memory); !status.ok()) return status.message();
    if (const Status status = bootstrap.barrier(); !status.ok()) return status.message();
    return checkContents(bootstrap, memory);
  });
}

TEST_CASE("path check: a mapping that leads elsewhere is told by the pair, on all ranks") {
  onAllKinds([](Bootstrap& bootstrap, const SymmetricMemory& memory) -> std::string {
    const StrayMemory stray(memory, 2);
    const Status status = checkPaths(bootstrap, bootstrap.rank() == 1 ? stray : memory);
    return expectFailure(status, fcclSystemError, {"rank 1 writes into the memory of rank 2", "seen by the reader"});
  });
}

TEST_CASE("path check: one wrong bit is told by the pair and the place, on all ranks") {
  onAllKinds([](Bootstrap& bootstrap, const SymmetricMemory& memory) -> std::string {
    // Of what rank 0 writes for rank 3, the last byte.
    FlippingBootstrap flipping(bootstrap, memory.peer(3) + (64 << 10) - 1);
    Bootstrap& used = bootstrap.rank() == 0 ? static_cast<Bootstrap&>(flipping) : bootstrap;
    return expectFailure(checkPaths(used, memory), fcclSystemError,
                         {"rank 0 writes into the memory of rank 3", "byte 65528", "seen by the writer"});
  });
}
