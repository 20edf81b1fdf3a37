// Who is named where ranks end one after the other.
#include <cstdlib>
#include <memory>

#include "kernels/host/wait.h"
#include "tests/support/catch.h"

using namespace fccl::host;

namespace {

struct Freed {
  void operator()(char* memory) const { std::free(memory); }
};

// Three ranks, of which this is rank 0. Rank 1 gives up because of rank 2, or says nothing, and is gone when it is
// asked whether it lives, which is after its word was looked at.
struct Ending {
  World world;
  std::unique_ptr<char, Freed> memory[3];
  uint32_t lastWord;

  explicit Ending(uint32_t word) : lastWord(word) {
    world.ranks = 3;
    for (auto& each : memory) {
      each.reset(static_cast<char*>(std::aligned_alloc(4096, controlBytes())));
      world.memory.push_back(each.get());
      new (each.get()) Control;
    }
    world.wait.timeout = std::chrono::milliseconds(10'000);
    world.aliveContext = this;
    world.alive = [](const void* context, int rank) {
      const auto& self = *static_cast<const Ending*>(context);
      // Release: as a rank does that gives up.
      if (rank == 1) self.world.control(1).ended.value.store(self.lastWord, std::memory_order_release);
      return rank != 1;
    };
  }
};

}  // namespace

TEST_CASE("waits: a rank that gave up and left between two looks has said why", "[waits]") {
  Ending ending(kGaveUp | static_cast<uint32_t>(FailureKind::kPeerDied) << 8 | 2u << 16);
  const Flag never{};
  CHECK_FALSE(awaitFlag(ending.world, 1, never, 1));
  CHECK(ending.world.failure.kind == FailureKind::kPeerAborted);
  CHECK(ending.world.failure.rank == 1);
}

TEST_CASE("waits: a rank that is gone without a word has died", "[waits]") {
  Ending ending(kRunning);
  const Flag never{};
  CHECK_FALSE(awaitFlag(ending.world, 1, never, 1));
  CHECK(ending.world.failure.kind == FailureKind::kPeerDied);
  CHECK(ending.world.failure.rank == 1);
}
