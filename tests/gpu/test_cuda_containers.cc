// Ranks in containers of their own, which see neither each other's processes nor each other's System V memory: the
// ways in which they share GPU memory work, and who ends is noticed.
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "tests/gpu/device_ranks.h"
#include "tests/support/local_ranks.h"
#include "tests/support/process_ranks.h"

using namespace fccl::test;

namespace {

// What a container has of its own, but for the network.
constexpr int kContainer = CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNS;

std::string leaveNamespaces() {
  const uid_t uid = getuid();
  if (unshare(kContainer) == 0) return "";
  if (unshare(kContainer | CLONE_NEWUSER) != 0) return fmt::format("unshare: {}", std::strerror(errno));
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/uid_map") << "0 " << uid << " 1";
  std::ofstream("/proc/self/gid_map") << "0 " << uid << " 1";
  return "";
}

// Why there are none here; empty where there are.
std::string noContainers() { return runInChild(leaveNamespaces); }

// This program goes on as number 1 of a process namespace; what it was waits for its end. Empty, or why it cannot.
std::string enterContainer() {
  if (std::string error = leaveNamespaces(); !error.empty()) return error;
  const pid_t inner = fork();
  if (inner == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return getpid() == 1 ? "" : "not number 1 of a process namespace";
  }
  int status = 0;
  waitpid(inner, &status, 0);
  if (WIFSIGNALED(status)) raise(WTERMSIG(status));
  _exit(WEXITSTATUS(status));
}

// `argument`: "end": rank 1 ends without a word after the first calls.
int contained(RankProcess& self) {
  if (const std::string reason = enterContainer(); !reason.empty()) {
    self.send("wrong " + reason);
    return 1;
  }
  const fcclConfig_t config = cudaConfig();
  fcclComm_t comm = self.init(&config);
  RankDevice device;
  for (const size_t count : {size_t{1}, size_t{1000}, size_t{100'003}}) {
    const std::string wrong =
        allReduceOnDevice(device, comm, self.rank, self.ranks, fcclBfloat16, count, uint64_t{count});
    if (!wrong.empty()) {
      self.send("wrong " + wrong);
      return 1;
    }
  }
  self.send("right");
  self.receive();
  if (self.argument == "end") {
    if (self.rank == 1) _exit(0);  // number 1 of a namespace does not get signals from itself
    void* const data = device.take(1000);
    // Enqueued before or after that end, it does not go on for ever.
    (void)fcclAllReduce(data, data, 100, fcclFloat32, fcclSum, comm, device.stream());
    (void)cudaStreamSynchronize(device.stream());
    fcclResult_t async = fcclInProgress;
    const auto limit = std::chrono::steady_clock::now() + Seconds(10);
    do {
      (void)fcclCommGetAsyncError(comm, &async);
    } while (async == fcclSuccess && std::chrono::steady_clock::now() < limit);
    self.sendResult("ended", async, comm);
    fcclCommAbort(comm);
    return 0;
  }
  fcclCommDestroy(comm);
  return 0;
}
const RankProgram kContained("cuda-contained", contained);

}  // namespace

TEST_CASE("CUDA containers: ranks that do not see each other's processes share memory in each way") {
  FCCL_NEED_GPUS(1);
  if (const std::string reason = noContainers(); !reason.empty()) FCCL_SKIP(reason);
  for (const char* way : {"auto", "vmm", "ipc"}) {
    INFO("FCCL_CUDA_MEMORY=" << way);
    ProcessRanks processes("cuda-contained", 2, {{"FCCL_CUDA_MEMORY", way}});
    processes.relayId();
    processes.expectAll("right", Milliseconds(60'000));
    processes.tellAll("go on");
    processes.expectAllExit();
  }
}

TEST_CASE("CUDA containers: the end of a rank in another one is noticed, and names it") {
  FCCL_NEED_GPUS(1);
  if (const std::string reason = noContainers(); !reason.empty()) FCCL_SKIP(reason);
  ProcessRanks processes("cuda-contained", 2, {}, "end");
  processes.relayId();
  processes.expectAll("right", Milliseconds(60'000));
  processes.tellAll("go on");
  const RankResult result = processes.expectResult(0, "ended", Milliseconds(20'000));
  CHECK(result.result == fcclRemoteError);
  CHECK(result.message.find("ank 1") != std::string::npos);
  processes.expectAllExit();
}
