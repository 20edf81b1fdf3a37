// Groups of processes that are killed at a random moment of their start or of their first calls: nothing stays behind,
// and the next group starts as if nothing had been.
#include <signal.h>

#include <thread>

#include "tests/support/catch.h"
#include "tests/support/process_ranks.h"
#include "tests/support/test_data.h"
#include "tests/support/thread_ranks.h"

using namespace fccl::test;

namespace {

const RankProgram kStart("start", [](RankProcess& self) {
  const fcclConfig_t config = testConfig(4096);
  fcclComm_t comm = self.init(&config);
  float value = 1;
  for (;;) {
    if (fcclAllReduce(&value, &value, 1, fcclFloat32, fcclMax, comm, nullptr) != fcclSuccess) return 1;
  }
});

const RankProgram kOnce("once", [](RankProcess& self) {
  const fcclConfig_t config = testConfig(4096);
  fcclComm_t comm = self.init(&config);
  float value = static_cast<float>(self.rank + 1);
  const bool right =
      fcclAllReduce(&value, &value, 1, fcclFloat32, fcclSum, comm, nullptr) == fcclSuccess && value == 10;
  self.send(right ? "right" : "wrong");
  return fcclCommDestroy(comm) == fcclSuccess && right ? 0 : 1;
});

}  // namespace

TEST_CASE("stress: all ranks killed at a random moment of their start, nothing stays behind", "[stress]") {
  const auto before = fcclNames();
  for (const char* provider : {"auto", "posix", "memfd"}) {
    for (uint64_t round = 0; round < (slowness() > 1 ? 4 : 34); ++round) {
      ProcessRanks processes("start", 4, {{"FCCL_SHARED_MEMORY", provider}});
      processes.relayId();
      std::this_thread::sleep_for(std::chrono::microseconds(hash(7, round) % 30'000));
      for (int rank = 0; rank < 4; ++rank) processes.signal(rank, SIGKILL);
    }
  }
  // Where all are killed between the moment a file in /dev/shm has its name and the moment it has lost it, the next
  // start clears it away.
  ProcessRanks processes("once", 4, {{"FCCL_SHARED_MEMORY", "posix"}});
  processes.relayId();
  processes.expectAll("right");
  processes.expectAllExit();
  CHECK(fcclLeftovers(before).empty());
}

TEST_CASE("stress: one rank killed at a random moment of its start, the others end in time", "[stress]") {
  const auto before = fcclNames();
  for (uint64_t round = 0; round < (slowness() > 1 ? 3 : 10); ++round) {
    ProcessRanks processes("start", 3, {{"FCCL_INIT_TIMEOUT_MS", "2000"}});
    processes.relayId();
    std::this_thread::sleep_for(std::chrono::microseconds(hash(8, round) % 20'000));
    const int victim = static_cast<int>(hash(9, round) % 3);
    processes.signal(victim, SIGKILL);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      // Either the start fails ("failed ...", status 3) or a call does (status 1): both end by themselves.
      const int status = processes.waitExit(rank, Milliseconds(10'000));
      CHECK((status == 1 || status == 3));
    }
  }
  CHECK(fcclLeftovers(before).empty());
}
