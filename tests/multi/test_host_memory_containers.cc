// Symmetric memory and windows of processes in containers, or in pieces of them: a small /dev/shm or none, namespaces
// that differ, other machines.
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <thread>

#include "tests/support/catch.h"
#include "tests/support/host_memory_checks.h"
#include "tests/support/local_ranks.h"
#include "tests/support/thread_ranks.h"
#include "transport/symmetric_memory.h"

using namespace fccl;
using namespace fccl::test;
using Memory = std::unique_ptr<SymmetricMemory>;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

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
