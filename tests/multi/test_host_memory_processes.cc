// Symmetric memory and windows between processes: every way to pass them, layouts, sizes, refusals, leaks, strangers.
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <mutex>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/host_memory_checks.h"
#include "tests/support/local_ranks.h"
#include "tests/support/process_ranks.h"
#include "transport/symmetric_memory.h"

using namespace fccl;
using namespace fccl::test;
using Memory = std::unique_ptr<SymmetricMemory>;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("host memory: processes see each other's parts, and no name stays") {
  const auto before = fcclNames();
  for (const fcclSharedMemory_t provider : kProviders) {
    for (const int ranks : {2, 4, 8}) {
      INFO(ranks << " ranks, provider " << provider);
      ForkedRanks processes(oneRankEach(ranks), [=](int, Bootstrap& bootstrap) {
        return createAndCheck(bootstrap, provider, kindOf(provider));
      });
      CHECK(processes.wait() == "");
    }
  }
  CHECK(fcclLeftovers(before).empty());
}

TEST_CASE("host memory and windows: processes with several ranks each") {
  const std::vector<std::vector<std::vector<int>>> layouts{
      {{0, 1}, {2, 3}}, {{0, 2}, {1, 3}}, {{0}, {1, 2, 3}}, {{1, 2}, {3, 0}}};
  for (const auto& layout : layouts) {
    for (const fcclSharedMemory_t provider : kProviders) {
      ForkedRanks processes(layout, [=](int rank, Bootstrap& bootstrap) -> std::string {
        if (std::string wrong = createAndCheck(bootstrap, provider, kindOf(provider)); !wrong.empty()) return wrong;
        const Result<void*> block = allocateWindowMemory(50'000);
        if (!block.ok()) return block.status().message();
        char* const buffer = static_cast<char*>(block.value()) + ptrdiff_t{5000} * rank + 3;
        Result<Memory> window = mapHostWindow(bootstrap, buffer, 30'000, {});
        if (!window.ok()) return window.status().message();
        if (window.value()->peer(rank) != buffer) return "peer(own rank) is not the buffer";
        const std::string wrong = checkContents(bootstrap, *window.value());
        return wrong.empty() ? freeWindowMemory(block.value()).message() : wrong;
      });
      CHECK(processes.wait() == "");
    }
  }
}

TEST_CASE("host memory: sizes that cannot be had are errors in all processes") {
  for (const fcclSharedMemory_t provider : kProviders) {
    ForkedRanks processes(oneRankEach(3), [=](int, Bootstrap& bootstrap) -> std::string {
      const auto fails = [&](size_t bytes, fcclResult_t code) {
        return expectFailure(createHostMemory(bootstrap, bytes, with(provider)).status(), code, {"memory"});
      };
      std::string all = fails(0, fcclInvalidArgument) + fails(~size_t{0}, fcclInvalidArgument);
      all += fails(~size_t{0} / 3 - 9000, fcclSystemError) + fails(size_t{1} << 45, fcclSystemError);
      return all;
    });
    CHECK(processes.wait() == "");
  }
}

TEST_CASE("windows: other processes see the block, also after it is freed") {
  for (const int ranks : {2, 4}) {
    ForkedRanks processes(oneRankEach(ranks), [=](int rank, Bootstrap& bootstrap) -> std::string {
      const Result<void*> block = allocateWindowMemory(40'000);
      if (!block.ok()) return block.status().message();
      char* const buffer = static_cast<char*>(block.value()) + 4096;
      Result<Memory> window = mapHostWindow(bootstrap, buffer, 20'000, {});
      Result<Memory> again = mapHostWindow(bootstrap, buffer, 100, {});  // overlapping windows
      if (!window.ok() || !again.ok()) return window.status().message() + again.status().message();
      if (std::string wrong = checkContents(bootstrap, *window.value()); !wrong.empty()) return wrong;
      again.value().reset();
      for (int r = 0; r < ranks; ++r) {
        if (!window.value()->alive(r)) return "giving one window back made a rank look dead in another";
      }
      if (Status status = bootstrap.barrier(); !status.ok()) return status.message();
      if (Status status = freeWindowMemory(block.value()); !status.ok()) return status.message();
      if (Status status = bootstrap.barrier(); !status.ok()) return status.message();
      const int other = (rank + 1) % ranks;
      return window.value()->peer(other)[77] == valueOf(other, 77) ? "" : "a value is gone";
    });
    CHECK(processes.wait() == "");
  }
}

TEST_CASE("windows: one rank's bad buffer is an error in all processes") {
  for (int bad = 0; bad < 3; ++bad) {
    ForkedRanks processes(oneRankEach(3), [=](int rank, Bootstrap& bootstrap) -> std::string {
      const Result<void*> block = allocateWindowMemory(8192);
      if (!block.ok()) return block.status().message();
      std::vector<char> heap(8192);
      void* const buffer = rank == bad ? heap.data() : block.value();
      std::string all = expectFailure(mapHostWindow(bootstrap, buffer, 4096, {}).status(), fcclInvalidArgument,
                                      {"not host memory of fcclMemAlloc"});
      all += expectFailure(mapHostWindow(bootstrap, block.value(), rank == bad ? 100 : 200, {}).status(),
                           fcclInvalidUsage, {"100", "200"});
      Result<Memory> window = mapHostWindow(bootstrap, block.value(), 8192, {});
      return all + (window.ok() ? checkContents(bootstrap, *window.value()) : window.status().message());
    });
    CHECK(processes.wait() == "");
  }
}

TEST_CASE("host memory and windows: descriptors and mappings stay flat, also where creation fails") {
  ForkedRanks processes(oneRankEach(2), [](int rank, Bootstrap& bootstrap) -> std::string {
    const Result<void*> block = allocateWindowMemory(8192);
    if (!block.ok()) return block.status().message();
    Footprint before{};
    for (int i = 0; i < 210; ++i) {
      if (i == 10) before = footprint();
      for (const fcclSharedMemory_t provider : kProviders) {
        if (auto made = createHostMemory(bootstrap, 20'000, with(provider)); !made.ok()) return made.status().message();
        if (createHostMemory(bootstrap, size_t{1} << 50, with(provider)).ok()) return "2^50 bytes were given";
      }
      if (auto window = mapHostWindow(bootstrap, block.value(), 8192, {}); !window.ok())
        return window.status().message();
      if (mapHostWindow(bootstrap, rank == 0 ? &i : block.value(), 4, {}).ok()) return "a stack pointer was taken";
    }
    const Footprint after = footprint();
    if (after.descriptors != before.descriptors)
      return fmt::format("{} descriptors became {}", before.descriptors, after.descriptors);
    if (after.mappings > before.mappings + 20)
      return fmt::format("{} mappings became {}", before.mappings, after.mappings);
    return "";
  });
  CHECK(processes.wait(seconds(60)) == "");
}

TEST_CASE("host memory: a process without free descriptors is an error for all, not a hang") {
  for (int poor = 0; poor < 3; ++poor) {
    for (int spare = 0; spare < 4; ++spare) {
      INFO("rank " << poor << " has " << spare << " descriptors left");
      ForkedRanks processes(oneRankEach(3), [=](int rank, Bootstrap& bootstrap) -> std::string {
        rlimit old{};
        getrlimit(RLIMIT_NOFILE, &old);
        if (rank == poor) {
          const int lowest = dup(0);
          close(lowest);
          const rlimit few{static_cast<rlim_t>(lowest + spare), old.rlim_max};
          setrlimit(RLIMIT_NOFILE, &few);
        }
        const auto start = Clock::now();
        const bool ok = createHostMemory(bootstrap, 4096, {}).ok();
        if (rank == poor) setrlimit(RLIMIT_NOFILE, &old);
        Result<std::vector<uint8_t>> all = bootstrap.exchange<uint8_t>(ok);
        if (!all.ok()) return "the ranks are out of step: " + all.status().message();
        for (const uint8_t theirs : all.value()) {
          if (theirs != all.value()[0]) return "some ranks have memory, others not";
        }
        if (spare == 0 && ok) return "worked without descriptors";
        return Clock::now() - start < seconds(10) ? "" : "took long";
      });
      CHECK(processes.wait() == "");
    }
  }
}

TEST_CASE("host memory: strangers at the socket neither get in nor hold anybody up") {
  const pid_t stranger = fork();
  REQUIRE(stranger >= 0);  // kill(-1) would reach every process
  if (stranger == 0) {
    for (unsigned round = 0;; ++round) {
      for (const std::string& name : fcclNames()) {
        if (name[0] != '@') continue;
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::memcpy(address.sun_path + 1, name.data() + 1, std::min(name.size() - 1, sizeof address.sun_path - 1));
        const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        const socklen_t length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
        if (connect(fd, reinterpret_cast<sockaddr*>(&address), length) == 0) {
          const std::vector<uint32_t> garbage(round % 16, 1);  // a header of 24 bytes that says rank 1, among others
          (void)!send(fd, garbage.data(), garbage.size() * 4, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        if (round % 2 == 0) close(fd);
      }
      if (getppid() == 1) _exit(0);
    }
  }
  for (int round = 0; round < 5; ++round) {
    ForkedRanks processes(oneRankEach(3), [](int, Bootstrap& bootstrap) -> std::string {
      for (int i = 0; i < 20; ++i) {
        if (std::string wrong = createAndCheck(bootstrap, fcclSharedMemoryMemfd, "memfd", 100); !wrong.empty())
          return wrong;
      }
      return "";
    });
    CHECK(processes.wait() == "");
  }
  kill(stranger, SIGKILL);
  waitpid(stranger, nullptr, 0);
}

TEST_CASE("host memory: many groups at once in the same processes") {
  constexpr int kGroups = 16;
  constexpr int kProcesses = 4;
  std::vector<std::unique_ptr<SharedGroup>> groups;
  for (int g = 0; g < kGroups; ++g) groups.push_back(std::make_unique<SharedGroup>(kProcesses));
  ForkedRanks processes(oneRankEach(kProcesses), [&](int rank, Bootstrap&) -> std::string {
    std::mutex mutex;
    std::string all;
    std::vector<std::jthread> threads;
    for (int g = 0; g < kGroups; ++g) {
      threads.emplace_back([&, g] {
        const auto bootstrap = groups[static_cast<size_t>(g)]->member(rank, seconds(30));
        for (int round = 0; round < 12; ++round) {
          const auto provider = static_cast<fcclSharedMemory_t>((round + g) % 3);
          const std::string wrong = createAndCheck(*bootstrap, provider, kindOf(provider), 5000);
          if (wrong.empty()) continue;
          std::lock_guard lock(mutex);
          all += wrong + "\n";
          return;
        }
      });
    }
    threads.clear();
    return all;
  });
  CHECK(processes.wait(seconds(60)) == "");
}

TEST_CASE("host memory: a rank that is late at any step is waited for") {
  for (const fcclSharedMemory_t provider : kProviders) {
    for (const int late : {0, 1}) {
      ForkedRanks::Options options;
      options.beforeCall = [=](int rank, int) {
        if (rank == late) std::this_thread::sleep_for(milliseconds(20));
      };
      ForkedRanks processes(
          oneRankEach(3),
          [=](int, Bootstrap& bootstrap) { return createAndCheck(bootstrap, provider, kindOf(provider), 5000); },
          options);
      CHECK(processes.wait() == "");
    }
  }
}

namespace {

// Stays away for a while right after its n-th call of the bootstrap, when it has what the others told and they go on.
class LateAfter : public Bootstrap {
 public:
  LateAfter(Bootstrap& bootstrap, int call, seconds delay) : bootstrap_(bootstrap), left_(call), delay_(delay) {}
  int rank() const override { return bootstrap_.rank(); }
  int ranks() const override { return bootstrap_.ranks(); }
  Status allGather(void* all, size_t bytes) override { return late(bootstrap_.allGather(all, bytes)); }
  Status barrier() override { return late(bootstrap_.barrier()); }
  Status agree(const Status& mine) override { return late(bootstrap_.agree(mine)); }
  void abort() override { bootstrap_.abort(); }

 private:
  Status late(Status status) {
    if (left_-- == 0) std::this_thread::sleep_for(delay_);
    return status;
  }
  Bootstrap& bootstrap_;
  int left_;
  seconds delay_;
};

}  // namespace

TEST_CASE("host memory: a rank that attaches 5 s after all others finds what it was told of") {
  // One group of 8 for each step after which a rank may be late, all at the same time. By name, since only a name can
  // be gone when the rank comes.
  constexpr fcclSharedMemory_t kByName = fcclSharedMemoryPosix;
  std::vector<std::unique_ptr<ForkedRanks>> groups;
  for (int step = 0; step < 9; ++step) {
    groups.push_back(std::make_unique<ForkedRanks>(oneRankEach(8), [=](int rank, Bootstrap& bootstrap) -> std::string {
      if (rank != 5) return createAndCheck(bootstrap, kByName, kindOf(kByName), 5000);
      LateAfter late(bootstrap, step, seconds(5));
      return createAndCheck(late, kByName, kindOf(kByName), 5000);
    }));
  }
  for (const auto& group : groups) CHECK(group->wait() == "");
}
