// A thread that asks a communicator how it is, while another aborts it: what a watchdog does.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "fccl.h"
#include "lib/handle.h"
#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

using namespace fccl::test;

TEST_CASE("a communicator is not freed while somebody asks it something") {
  fcclComm_t comm = nullptr;
  fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
  config.deviceType = fcclDeviceHost;
  REQUIRE(fcclCommInitAll(&comm, 1, &config) == fcclSuccess);
  std::atomic<bool> ended{false};
  std::jthread ender;
  {
    const fccl::Asking asking(comm);
    REQUIRE(asking.live());
    // Relaxed: a flag that stands for nothing else.
    ender = std::jthread([&] { ended.store(fcclCommAbort(comm) == fcclSuccess, std::memory_order_relaxed); });
    while (fccl::Asking(comm).live()) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    CHECK(!ended.load(std::memory_order_relaxed));
  }
  ender.join();
  CHECK(ended.load(std::memory_order_relaxed));
}

TEST_CASE("a communicator may be asked anything while another thread ends it") {
  constexpr int kAskers = 3;
  std::atomic<int> wrong{0};
  for (int round = 0; round < static_cast<int>(300 / slowness()); round++) {
    fcclComm_t comm = nullptr;
    fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
    config.deviceType = fcclDeviceHost;
    REQUIRE(fcclCommInitAll(&comm, 1, &config) == fcclSuccess);
    std::atomic<int> begun{0};
    std::vector<std::jthread> askers;
    for (int i = 0; i < kAskers; i++) {
      askers.emplace_back([&] {
        // Relaxed: counts only; the handle itself came with the thread.
        begun.fetch_add(1, std::memory_order_relaxed);
        for (;;) {
          fcclResult_t error = fcclSuccess;
          int count = 0;
          (void)fcclGetLastError(comm);
          const fcclResult_t first = fcclCommGetAsyncError(comm, &error);
          const fcclResult_t second = fcclCommCount(comm, &count);
          if (second == fcclSuccess && count != 1) wrong.fetch_add(1, std::memory_order_relaxed);
          if (first == fcclSuccess && second == fcclSuccess) continue;
          if (second != fcclInvalidArgument) wrong.fetch_add(1, std::memory_order_relaxed);
          return;
        }
      });
    }
    while (begun.load(std::memory_order_relaxed) < kAskers) std::this_thread::yield();
    const fcclResult_t ended = round % 2 == 0 ? fcclCommAbort(comm) : fcclCommDestroy(comm);
    if (ended != fcclSuccess) wrong.fetch_add(1, std::memory_order_relaxed);
  }
  CHECK(wrong == 0);
}
