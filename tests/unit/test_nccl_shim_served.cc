// The shim where FCCL serves calls itself: over the stand-in for NCCL, with HOST communicators.
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "lib/testing.h"
#include "tests/support/catch.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/nccl_shim.h"
#include "tests/support/scoped_file.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/text.h"
#include "tests/support/thread_ranks.h"

using namespace fccl;
using namespace fccl::test;

namespace {

// Communicators of two ranks, made by a thread for each; `calls` then drives both from one thread.
void withBothRanks(size_t communicators, const std::function<void(const std::vector<std::array<void*, 2>>&)>& calls) {
  std::vector<NcclUniqueId> ids(communicators);
  for (NcclUniqueId& id : ids) REQUIRE(shimmedOnHost().getUniqueId(&id) == 0);
  std::vector<std::array<void*, 2>> comms(communicators);
  std::atomic<int> failed{0};
  runThreads(2, "communicators", Seconds(40), [&](int rank) {
    for (size_t i = 0; i < communicators; i++) {
      failed += shimmedOnHost().commInitRank(&comms[i][static_cast<size_t>(rank)], 2, ids[i], rank);
    }
  });
  REQUIRE(failed == 0);
  runThreads(1, "one thread for both ranks", Seconds(40), [&](int) { calls(comms); });
  for (const auto& both : comms) {
    for (void* comm : both) CHECK(shimmedOnHost().commDestroy(comm) == 0);
  }
}

// Long enough for a thread that has said that it calls to be inside of the call, nearly always. What is tested must
// hold either way.
void letItCall(const std::atomic<bool>& calls) {
  while (!calls) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
}

}  // namespace

TEST_CASE("NCCL shim on HOST: sums are FCCL's, what is not of its kind goes to NCCL", "[nccl]") {
  fake().reset();
  const Shim& shim = shimmedOnHost();
  shim.withComms(3, [&](int rank, void*& comm) -> std::string {
    if (std::string wrong = shim.sum(rank, 3, comm); !wrong.empty()) return wrong;
    int32_t value = rank;
    if (shim.allReduce(&value, &value, 1, fcclInt32, fcclMax, comm, nullptr) != 0 || value != 2) return "max";
    // 4 bytes more than 256 KiB.
    return shim.sum(rank, 3, comm, (size_t{64} << 10) + 1);
  });
  CHECK(fake().count("ncclAllReduce") == 6);
  CHECK(fake().liveComms() == 0);
}

TEST_CASE("NCCL shim on HOST: sizes at which the tuning file has NCCL as the faster one go to NCCL", "[nccl]") {
  fake().reset();
  const ScopedFile file("shim-tuning.json");
  TuningTable tuned;
  TuningSeries series;
  series.dtype = fcclFloat32;
  tuned.put(series, {4096, fcclStrategyOneshot, {{fcclStrategyOneshot, 2, 2}, {fcclStrategyNccl, 1, 1}}});
  tuned.put(series, {65536, fcclStrategyOneshot, {{fcclStrategyOneshot, 1, 1}, {fcclStrategyNccl, 2, 2}}});
  {
    fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
    config.deviceType = fcclDeviceHost;
    RankGroup group(2, config);
    const TuningMachine machine = testing::communicatorOf(group.comm(0)).tuningMachine();
    REQUIRE(saveTuning(file.path(), machine, tuned).ok());
  }
  const ScopedVariable variable("FCCL_TUNING_FILE", file.path().c_str());
  const auto callsOfNccl = [&](size_t count) {
    const int before = fake().count("ncclAllReduce");
    const Shim& shim = shimmedOnHost();
    shim.withComms(2, [&](int rank, void*& comm) -> std::string {
      for (int i = 0; i < 2; i++) {
        if (std::string wrong = shim.sum(rank, 2, comm, count); !wrong.empty()) return wrong;
      }
      return "";
    });
    return fake().count("ncclAllReduce") - before;
  };
  CHECK(callsOfNccl(1024) == 4);
  CHECK(callsOfNccl(1500) == 4);  // the nearest that was measured decides
  CHECK(callsOfNccl(16384) == 0);
  CHECK(callsOfNccl(100) == 0);  // nothing near was
}

TEST_CASE("NCCL shim on HOST: an abort, and a look for errors, do not wait for a call that is stuck", "[nccl]") {
  fake().reset();
  const Shim& shim = shimmedOnHost();
  std::atomic<bool> aborted{false};
  shim.withComms(2, [&](int rank, void*& comm) -> std::string {
    if (std::string wrong = shim.sum(rank, 2, comm); !wrong.empty()) return wrong;
    void* const ours = std::exchange(comm, nullptr);
    if (rank == 1) {
      // Does not come to the call of rank 0.
      while (!aborted) std::this_thread::yield();
      return shim.commAbort(ours) == 0 ? "" : "ncclCommAbort of the other rank";
    }
    std::atomic<bool> calls{false};
    int result = 0;
    std::string sentence;
    std::thread caller([&] {
      float value = 1;
      calls = true;
      result = shim.allReduce(&value, &value, 1, fcclFloat32, fcclSum, ours, nullptr);
      sentence = shim.getLastError(nullptr);
    });
    letItCall(calls);
    int error = 1;
    const int asked = shim.commGetAsyncError(ours, &error);
    const int ended = shim.commAbort(ours);
    caller.join();
    aborted = true;
    if (asked != 0 || error != 0) return "ncclCommGetAsyncError";
    if (ended != 0) return "ncclCommAbort";
    if (result != fcclInvalidUsage) return "the call that was stuck gave " + std::to_string(result);
    return contains(sentence, "the communicator was aborted") ? "" : "ncclGetLastError: " + sentence;
  });
  // NCCL's communicator is gone: nothing may go there in place of what FCCL has given up.
  CHECK(fake().count("ncclAllReduce") == 0);
  CHECK(fake().liveComms() == 0);
}

TEST_CASE("NCCL shim on HOST: an abort ends a call that a destroy waits for", "[nccl]") {
  fake().reset();
  const Shim& shim = shimmedOnHost();
  std::atomic<bool> aborted{false};
  shim.withComms(2, [&](int rank, void*& comm) -> std::string {
    if (rank == 1) {
      while (!aborted) std::this_thread::yield();
      return "";
    }
    void* const ours = std::exchange(comm, nullptr);
    std::atomic<bool> calls{false};
    std::thread caller([&] {
      float value = 1;
      calls = true;
      (void)shim.allReduce(&value, &value, 1, fcclFloat32, fcclSum, ours, nullptr);
    });
    letItCall(calls);
    std::atomic<bool> destroys{false};
    std::thread destroyer([&] {
      destroys = true;
      (void)shim.commFinalize(ours);
    });
    letItCall(destroys);
    const int ended = shim.commAbort(ours);
    caller.join();
    destroyer.join();
    aborted = true;
    return ended == 0 ? "" : "ncclCommAbort";
  });
  CHECK(fake().liveComms() == 0);
}

TEST_CASE("NCCL shim on HOST: ncclGetLastError tells of the last failure, be it FCCL's or NCCL's", "[nccl]") {
  fake().reset();
  const Shim& shim = shimmedOnHost();
  std::atomic<bool> aborted{false};
  shim.withComms(2, [&](int rank, void*& comm) -> std::string {
    if (std::string wrong = shim.sum(rank, 2, comm); !wrong.empty()) return wrong;
    if (rank == 0) {
      const int ended = shim.commAbort(std::exchange(comm, nullptr));
      aborted = true;
      return ended == 0 ? "" : "ncclCommAbort";
    }
    while (!aborted) std::this_thread::yield();
    if (shim.sum(rank, 2, comm) != "result") return "a sum without the other rank";
    std::string sentence = shim.getLastError(comm);
    if (!contains(sentence, "rank 0 has aborted the communicator")) return "after a call: " + sentence;
    // In a group as well, whatever NCCL makes of its end.
    float value = 1;
    if (shim.groupStart() != 0) return "a group";
    if (shim.allReduce(&value, &value, 1, fcclFloat32, fcclSum, comm, nullptr) != 0) return "a call in a group";
    if (shim.groupEnd() != fcclRemoteError) return "the end of a group";
    sentence = shim.getLastError(comm);
    if (!contains(sentence, "rank 0 has aborted the communicator")) return "after a group: " + sentence;
    fake().fail("ncclBroadcast", 1, 6);
    if (shim.broadcast(&rank, &rank, 1, fcclInt32, 0, comm, nullptr) != 6) return "ncclBroadcast";
    sentence = shim.getLastError(comm);
    if (!contains(sentence, "fake failure of ncclBroadcast")) return "after NCCL's failure: " + sentence;
    int error = 0;
    if (shim.commGetAsyncError(comm, &error) != 0 || error != fcclRemoteError) return "ncclCommGetAsyncError";
    sentence = shim.getLastError(comm);
    if (!contains(sentence, "rank 0 has aborted the communicator")) return "after ncclCommGetAsyncError: " + sentence;
    return shim.commAbort(std::exchange(comm, nullptr)) == 0 ? "" : "ncclCommAbort";
  });
  CHECK(fake().liveComms() == 0);
}

TEST_CASE("NCCL shim on HOST: in a group one thread's ranks go on together where their calls wait (FCCL_CHECK)",
          "[nccl]") {
  fake().reset();
  const ScopedVariable check("FCCL_CHECK", "1");
  const Shim& shim = shimmedOnHost();
  int result = 0;
  float a[] = {1, 2};
  float b[] = {3, 5};
  float refused[2][3] = {{1, 2, 0}, {4, 8, 0}};
  withBothRanks(2, [&](const std::vector<std::array<void*, 2>>& comms) {
    const auto sum = [&](const void* in, void* out, size_t count, void* comm) {
      result += shim.allReduce(in, out, count, fcclFloat32, fcclSum, comm, nullptr);
    };
    result += shim.groupStart();
    for (int i = 0; i < 2; i++) {
      sum(&a[0], &a[0], 1, comms[0][0]);
      // In another order for the other rank.
      sum(&b[1], &b[1], 1, comms[1][1]);
      sum(&a[1], &a[1], 1, comms[0][1]);
      sum(&b[0], &b[0], 1, comms[1][0]);
    }
    // Buffers that overlap are not FCCL's.
    for (size_t r = 0; r < 2; r++) sum(refused[r], refused[r] + 1, 2, comms[0][r]);
    result += shim.groupEnd();
  });
  CHECK(result == 0);
  CHECK(a[0] == 6);
  CHECK(a[1] == 6);
  CHECK(b[0] == 16);
  CHECK(b[1] == 16);
  CHECK(refused[0][1] == 5);
  CHECK(refused[0][2] == 10);
  CHECK(refused[1][1] == 5);
  CHECK(refused[1][2] == 10);
  CHECK(fake().count("ncclAllReduce") == 2);
  CHECK(fake().liveComms() == 0);
}
