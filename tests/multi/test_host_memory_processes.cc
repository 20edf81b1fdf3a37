// Symmetric memory and windows between processes: every way to pass them, containers in pieces, death at any point.
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <mutex>
#include <random>
#include <thread>

#include "tests/support/catch.h"
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

namespace {

char valueOf(int rank, size_t i) { return static_cast<char>(rank * 37 + static_cast<int>(i * i / 7) + 1); }

HostMemoryOptions with(fcclSharedMemory_t provider) {
  HostMemoryOptions options;
  options.provider = provider;
  options.timeout = seconds(20);
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

std::string createAndCheck(Bootstrap& bootstrap, fcclSharedMemory_t provider, std::string_view kind,
                           size_t bytes = 100'000) {
  Result<Memory> memory = createHostMemory(bootstrap, bytes, with(provider));
  if (!memory.ok()) return memory.status().message();
  if (std::string_view(memory.value()->kind()).find(kind) == std::string_view::npos) return memory.value()->kind();
  return checkContents(bootstrap, *memory.value());
}

std::string expectFailure(const Status& status, fcclResult_t code, const std::vector<std::string>& parts) {
  if (status.code() != code) return fmt::format("result is {} ({})", static_cast<int>(status.code()), status.message());
  for (const std::string& part : parts) {
    if (status.message().find(part) == std::string::npos)
      return fmt::format("'{}' does not say '{}'", status.message(), part);
  }
  return "";
}

std::string systemError(std::string_view what) { return fmt::format("{}: {}", what, std::strerror(errno)); }

// In user and mount namespaces of its own, so that mounts are allowed and seen by nobody else. Empty on success.
std::string enterMountNamespace() {
  const uid_t uid = getuid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return systemError("unshare");
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/uid_map") << "0 " << uid << " 1";
  std::ofstream("/proc/self/gid_map") << "0 " << uid << " 1";
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return systemError("mount --make-private");
  return "";
}

std::string mountSmallShm(const char* size) {
  if (std::string error = enterMountNamespace(); !error.empty()) return error;
  return mount("tmpfs", "/dev/shm", "tmpfs", 0, fmt::format("size={}", size).c_str()) == 0 ? ""
                                                                                           : systemError("mount tmpfs");
}

// Why namespaces cannot be tested here; empty where they can.
std::string noNamespaces() {
  return runInChild([] { return mountSmallShm("1m"); });
}

constexpr fcclSharedMemory_t kProviders[] = {fcclSharedMemoryAuto, fcclSharedMemoryMemfd, fcclSharedMemoryPosix};

const char* kindOf(fcclSharedMemory_t provider) { return provider == fcclSharedMemoryPosix ? "posix" : "memfd"; }

}  // namespace

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
        char* const buffer = static_cast<char*>(block.value()) + 5000 * rank + 3;
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

TEST_CASE("host memory: a small or full /dev/shm is an error with the cure, and needed by nothing else") {
  if (const std::string reason = noNamespaces(); !reason.empty()) FCCL_SKIP(reason);
  const auto inside = [](const char* size, size_t fill) {
    return runInChild([=]() -> std::string {
      if (std::string error = mountSmallShm(size); !error.empty()) return error;
      const std::vector<char> filler(fill, 'x');
      std::ofstream("/dev/shm/filler").write(filler.data(), static_cast<std::streamsize>(fill));
      ForkedRanks posix(oneRankEach(4), [](int, Bootstrap& bootstrap) -> std::string {
        const Footprint start = footprint();
        const Status status = createHostMemory(bootstrap, 1'000'000, with(fcclSharedMemoryPosix)).status();
        if (footprint().descriptors != start.descriptors) return "descriptors leak";
        return expectFailure(
            status, fcclSystemError,
            {"980 KiB", "3.8 MiB", "/dev/shm had", "free", "FCCL_SHARED_MEMORY=memfd", "FCCL_SLOT_BYTES"});
      });
      std::string all = posix.wait();
      ForkedRanks memfd(oneRankEach(4), [](int, Bootstrap& bootstrap) {
        return createAndCheck(bootstrap, fcclSharedMemoryAuto, "memfd", 1'000'000);
      });
      all += memfd.wait();
      // What failed has left its space.
      ForkedRanks fits(oneRankEach(2), [](int, Bootstrap& bootstrap) {
        return createAndCheck(bootstrap, fcclSharedMemoryPosix, "posix", 20'000);
      });
      return all + fits.wait();
    });
  };
  CHECK(inside("1m", 0) == "");
  CHECK(inside("4m", 3'000'000) == "");
}

TEST_CASE("host memory: without any /dev/shm and without permission for it") {
  if (const std::string reason = noNamespaces(); !reason.empty()) FCCL_SKIP(reason);
  CHECK(runInChild([]() -> std::string {
          if (std::string error = enterMountNamespace(); !error.empty()) return error;
          if (mount("/proc/self/fdinfo", "/dev/shm", nullptr, MS_BIND, nullptr) != 0) return systemError("bind mount");
          ForkedRanks posix(oneRankEach(2), [](int, Bootstrap& bootstrap) {
            return expectFailure(createHostMemory(bootstrap, 4096, with(fcclSharedMemoryPosix)).status(),
                                 fcclSystemError, {"/dev/shm"});
          });
          ForkedRanks memfd(oneRankEach(2), [](int, Bootstrap& bootstrap) {
            return createAndCheck(bootstrap, fcclSharedMemoryAuto, "memfd");
          });
          return posix.wait() + memfd.wait();
        }) == "");
}

TEST_CASE("host memory: ranks in different containers") {
  if (const std::string reason = noNamespaces(); !reason.empty()) FCCL_SKIP(reason);
  const auto run = [](int flags, const RankBody& body) {
    ForkedRanks::Options options;
    options.setup = [=](int process) { return process == 1 && unshare(flags) != 0 ? systemError("unshare") : ""; };
    ForkedRanks processes(oneRankEach(3), body, options);
    return processes.wait();
  };
  const auto memoryAndWindow = [](int rank, Bootstrap& bootstrap) -> std::string {
    if (std::string wrong = createAndCheck(bootstrap, fcclSharedMemoryAuto, "memfd"); !wrong.empty()) return wrong;
    const Result<void*> block = allocateWindowMemory(8192);
    if (!block.ok()) return block.status().message();
    Result<Memory> window = mapHostWindow(bootstrap, static_cast<char*>(block.value()) + rank, 5000, {});
    return window.ok() ? checkContents(bootstrap, *window.value()) : window.status().message();
  };
  CHECK(run(CLONE_NEWUSER | CLONE_NEWNS, memoryAndWindow) == "");
  CHECK(run(CLONE_NEWUSER | CLONE_NEWIPC | CLONE_NEWUTS, memoryAndWindow) == "");
  // Abstract sockets end at the network namespace. /proc does not, but to a rank in another user namespace it shows
  // nothing.
  CHECK(run(CLONE_NEWUSER | CLONE_NEWNET,
            [](int, Bootstrap& bootstrap) { return createAndCheck(bootstrap, fcclSharedMemoryAuto, "posix"); }) == "");
  if (geteuid() == 0 && runInChild([] { return unshare(CLONE_NEWNET) == 0 ? "" : "refused"; }).empty()) {
    CHECK(run(CLONE_NEWNET, memoryAndWindow) == "");
  }
}

namespace {

// Process 0 goes on as number 1 of a process namespace, in a network namespace of its own: no way to pass descriptors
// is left.
std::string isolate(int process) {
  if (process != 0) return "";
  if (unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET) != 0) return systemError("unshare");
  const pid_t inner = fork();
  if (inner == 0) return "";
  int status = 0;
  waitpid(inner, &status, 0);
  if (WIFSIGNALED(status)) raise(WTERMSIG(status));
  _exit(WEXITSTATUS(status));
}

}  // namespace

TEST_CASE("host memory: where descriptors cannot be passed, all fall back to /dev/shm, or say why not") {
  if (const std::string reason = noNamespaces(); !reason.empty()) FCCL_SKIP(reason);
  ForkedRanks::Options options;
  options.setup = isolate;
  ForkedRanks fallBack(
      oneRankEach(3),
      [](int, Bootstrap& bootstrap) { return createAndCheck(bootstrap, fcclSharedMemoryAuto, "posix"); }, options);
  CHECK(fallBack.wait() == "");
  ForkedRanks refused(
      oneRankEach(3),
      [](int, Bootstrap& bootstrap) -> std::string {
        std::string all = expectFailure(createHostMemory(bootstrap, 4096, with(fcclSharedMemoryMemfd)).status(),
                                        fcclSystemError, {"network namespace", "/proc/"});
        const Result<void*> block = allocateWindowMemory(8192);
        if (!block.ok()) return block.status().message();
        return all + expectFailure(mapHostWindow(bootstrap, block.value(), 8192, {}).status(), fcclSystemError,
                                   {"network namespace", "/proc/"});
      },
      options);
  CHECK(refused.wait() == "");
  // Another /dev/shm on top: nothing is left, and both reasons are given.
  options.setup = [](int process) {
    if (process == 0) {
      if (std::string error = mountSmallShm("4m"); !error.empty()) return error;
    }
    return isolate(process);
  };
  ForkedRanks nothing(
      oneRankEach(2),
      [](int, Bootstrap& bootstrap) {
        return expectFailure(createHostMemory(bootstrap, 4096, with(fcclSharedMemoryAuto)).status(), fcclSystemError,
                             {"by memfd", "network namespace", "/proc/", "by /dev/shm"});
      },
      options);
  CHECK(nothing.wait() == "");
}

TEST_CASE("alive: across process namespaces") {
  if (const std::string reason = noNamespaces(); !reason.empty()) FCCL_SKIP(reason);
  ForkedRanks::Options options;
  options.setup = isolate;
  ForkedRanks processes(
      oneRankEach(2),
      [](int rank, Bootstrap& bootstrap) -> std::string {
        Result<Memory> memory = createHostMemory(bootstrap, 4096, with(fcclSharedMemoryPosix));
        if (!memory.ok()) return memory.status().message();
        if (!memory.value()->alive(1 - rank)) return "the other is called dead";
        if (Status status = bootstrap.barrier(); !status.ok()) return status.message();
        if (rank == 0) _exit(0);  // signals to number 1 of a namespace, also its own, are ignored
        const auto end = Clock::now() + seconds(5);
        while (memory.value()->alive(0)) {
          if (Clock::now() > end) return "rank 0 is called alive";
          std::this_thread::sleep_for(milliseconds(1));
        }
        return "";
      },
      options);
  CHECK(processes.wait() == "");
}

TEST_CASE("host memory: ranks on different machines are told apart by the boot id") {
  if (const std::string reason = noNamespaces(); !reason.empty()) FCCL_SKIP(reason);
  ForkedRanks::Options options;
  options.setup = [](int process) -> std::string {
    if (process != 2) return "";
    if (std::string error = mountSmallShm("1m"); !error.empty()) return error;
    std::ofstream("/dev/shm/id") << "00000000-1111-2222-3333-444444444444\n";
    if (mount("/dev/shm/id", "/proc/sys/kernel/random/boot_id", nullptr, MS_BIND, nullptr) != 0)
      return systemError("bind mount");
    return "";
  };
  ForkedRanks processes(
      oneRankEach(4),
      [](int, Bootstrap& bootstrap) {
        return expectFailure(createHostMemory(bootstrap, 4096, {}).status(), fcclInvalidUsage,
                             {"rank 0", "rank 2", "different machines", "HOST", "00000000-1111"});
      },
      options);
  CHECK(processes.wait() == "");
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
