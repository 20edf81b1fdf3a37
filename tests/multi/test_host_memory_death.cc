// Symmetric memory of processes that die or are stopped, at any point: the others see it, and nothing stays behind.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/host_memory_checks.h"
#include "tests/support/local_ranks.h"
#include "tests/support/process_ranks.h"
#include "tests/support/thread_ranks.h"
#include "transport/symmetric_memory.h"

using namespace fccl;
using namespace fccl::test;
using Memory = std::unique_ptr<SymmetricMemory>;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("alive: a killed process is seen dead within 100 ms, as a zombie, and though a child of it lives") {
  for (const fcclSharedMemory_t provider : kProviders) {
    for (const bool window : {false, true}) {
      for (const bool leavesChild : {false, true}) {
        INFO("provider " << provider << (window ? ", window" : "") << (leavesChild ? ", with a child" : ""));
        int pipes[2];
        REQUIRE(pipe2(pipes, O_CLOEXEC) == 0);
        ForkedRanks processes({{0}, {1, 2}, {3}}, [&](int rank, Bootstrap& bootstrap) -> std::string {
          void* block = window ? allocateWindowMemory(4096).value() : nullptr;
          Result<Memory> memory =
              window ? mapHostWindow(bootstrap, block, 4096, {}) : createHostMemory(bootstrap, 4096, with(provider));
          if (!memory.ok()) return memory.status().message();
          std::atomic_ref<int64_t> died(*reinterpret_cast<int64_t*>(memory.value()->peer(0)));
          // A second group with its own lock, given back again: a process drops all its locks on a file with any
          // descriptor of it.
          if (!createHostMemory(bootstrap, 4096, with(provider)).ok()) return "no second memory";
          if (rank == 1 && leavesChild) {
            if (fork() == 0) {
              alarm(20);
              close(pipes[0]);
              char byte;
              (void)!read(pipes[1], &byte, 1);
              pause();
            }
          }
          if (Status status = bootstrap.barrier(); !status.ok()) return status.message();
          for (int r = 0; r < 4; ++r) {
            if (!memory.value()->alive(r)) return fmt::format("rank {} is called dead before it dies", r);
          }
          if (Status status = bootstrap.barrier(); !status.ok()) return status.message();
          if (rank == 1) {
            died.store(Clock::now().time_since_epoch().count(), std::memory_order_release);
            raise(SIGKILL);
          }
          if (rank == 2) pause();
          while (memory.value()->alive(1) || memory.value()->alive(2)) std::this_thread::sleep_for(milliseconds(1));
          const Clock::duration took(Clock::now().time_since_epoch().count() - died.load(std::memory_order_acquire));
          if (took > milliseconds(100) * slowness())
            return fmt::format("death was seen after {} us", took.count() / 1000);
          if (!memory.value()->alive(0) || !memory.value()->alive(3)) return "a living rank is called dead";
          // Neither may end before the other has looked.
          std::atomic_ref<int> looked(*reinterpret_cast<int*>(memory.value()->peer(3)));
          looked.fetch_add(1, std::memory_order_acq_rel);
          while (looked.load(std::memory_order_acquire) < 2) std::this_thread::sleep_for(milliseconds(1));
          return "";
        });
        CHECK(processes.wait(seconds(20)) == "process 1 was ended by signal 9\n");
        // The child that is left holds the other end of the pipe: it has to have been alive until now.
        close(pipes[1]);
        fcntl(pipes[0], F_SETFL, O_NONBLOCK);
        char byte;
        const ssize_t got = read(pipes[0], &byte, 1);
        CHECK((leavesChild ? got == -1 && errno == EAGAIN : got == 0));
        close(pipes[0]);
      }
    }
  }
}

TEST_CASE("alive: a stopped process lives") {
  ForkedRanks processes(oneRankEach(2), [](int rank, Bootstrap& bootstrap) -> std::string {
    Result<Memory> memory = createHostMemory(bootstrap, 4096, {});
    if (!memory.ok()) return memory.status().message();
    std::atomic_ref<int> done(*reinterpret_cast<int*>(memory.value()->peer(0)));
    if (rank == 1) {
      raise(SIGSTOP);
      while (done.load(std::memory_order_acquire) == 0) std::this_thread::sleep_for(milliseconds(1));
      return "";
    }
    for (int i = 0; i < 100; ++i) {
      if (!memory.value()->alive(1)) return "a stopped rank is called dead";
      std::this_thread::sleep_for(milliseconds(1));
    }
    done.store(1, std::memory_order_release);
    return "";
  });
  std::this_thread::sleep_for(milliseconds(300));
  for (int i = 0; i < 50; ++i) {
    processes.kill(1, SIGCONT);
    std::this_thread::sleep_for(milliseconds(20));
  }
  CHECK(processes.wait() == "");
}

TEST_CASE("host memory: killed at random points, nothing stays behind") {
  const auto before = fcclNames();
  std::mt19937 random(12345);
  for (const fcclSharedMemory_t provider : {fcclSharedMemoryAuto, fcclSharedMemoryPosix}) {
    for (int round = 0; round < 50; ++round) {
      ForkedRanks processes(oneRankEach(4), [=](int, Bootstrap& bootstrap) -> std::string {
        while (createHostMemory(bootstrap, 50'000, with(provider)).ok()) {
        }
        return "";
      });
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
      // Rank 0, which creates, or one that may be the last to know the name, or all at once.
      const bool all = round % 2 == 0;
      for (int p = 0; p < 4; ++p) {
        if (all || p == round / 2 % 4) processes.kill(p, SIGKILL);
      }
      if (!all) {
        std::this_thread::sleep_for(milliseconds(5));
        for (int p = 0; p < 4; ++p) processes.kill(p, SIGKILL);
      }
      REQUIRE(processes.wait() == "");
      // Where all are killed between the name and its end, the next start clears it away.
      if (provider == fcclSharedMemoryPosix) {
        ForkedRanks next(oneRankEach(2), [](int, Bootstrap& bootstrap) {
          return createAndCheck(bootstrap, fcclSharedMemoryPosix, "posix", 100);
        });
        REQUIRE(next.wait() == "");
      }
    }
    CHECK(fcclLeftovers(before).empty());
  }
}

TEST_CASE("host memory: killed before each step, the others get an error and leave nothing") {
  const auto before = fcclNames();
  for (const fcclSharedMemory_t provider : kProviders) {
    for (const int victim : {0, 2}) {
      bool created = false;
      for (int step = 0; !created; ++step) {
        INFO("provider " << provider << ", rank " << victim << " dies before call " << step);
        REQUIRE(step < 40);
        ForkedRanks::Options options;
        options.beforeCall = [=](int rank, int call) {
          if (rank == victim && call == step) raise(SIGKILL);
        };
        ForkedRanks processes(
            oneRankEach(3),
            [=](int, Bootstrap& bootstrap) -> std::string {
              const Footprint start = footprint();
              Result<Memory> memory = createHostMemory(bootstrap, 50'000, with(provider));
              if (memory.ok()) return "created";
              const Footprint end = footprint();
              if (end.descriptors != start.descriptors) return "descriptors leak";
              return memory.status().code() == fcclSystemError ? "" : memory.status().message();
            },
            options);
        const std::string report = processes.wait(seconds(20));
        created = report == "rank 0: created\nrank 1: created\nrank 2: created\n";
        if (!created) CHECK(report == fmt::format("process {} was ended by signal 9\n", victim));
      }
    }
  }
  CHECK(fcclLeftovers(before).empty());
}
