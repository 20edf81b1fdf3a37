#include "tests/support/local_ranks.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>
#include <thread>
#include <utility>

#include "tests/support/thread_ranks.h"

namespace fccl::test {

struct RankReport {
  char text[4000];
  void set(const std::string& what) { std::snprintf(text, sizeof text, "%s", what.c_str()); }
};

namespace {

template <class T>
T* shareArray(size_t count) {
  void* made = ::mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) std::abort();
  return static_cast<T*>(made);
}

bool hasEnded(pid_t pid, bool* bySignal) {
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
    return false;
  *bySignal = info.si_code != CLD_EXITED;
  return true;
}

// Waits until all have ended, kills those that are late, then reaps them; how each ended, or nothing where well.
std::vector<std::string> awaitAll(const std::vector<pid_t>& pids, const std::vector<bool>& killed,
                                  std::chrono::seconds limit, const std::function<void()>& onDeath) {
  const auto end = std::chrono::steady_clock::now() + limit;
  std::vector<std::string> results(pids.size());
  for (bool running = true; running;) {
    running = false;
    for (size_t i = 0; i < pids.size(); ++i) {
      bool bySignal = false;
      if (!hasEnded(pids[i], &bySignal)) {
        running = true;
        if (std::chrono::steady_clock::now() < end) continue;
        results[i] = "did not end within the limit";
        ::kill(pids[i], SIGKILL);
      } else if (bySignal) {
        onDeath();
      }
    }
    if (running) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (size_t i = 0; i < pids.size(); ++i) {
    int status = 0;
    ::waitpid(pids[i], &status, 0);
    if (!results[i].empty()) continue;
    if (WIFSIGNALED(status) && !killed[i]) results[i] = "was ended by signal " + std::to_string(WTERMSIG(status));
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
      results[i] = "ended with status " + std::to_string(WEXITSTATUS(status));
  }
  return results;
}

}  // namespace

std::string runOnThreads(int ranks, const RankBody& body, std::chrono::milliseconds timeout) {
  SharedGroup group(ranks);
  std::vector<std::string> reports(static_cast<size_t>(ranks));
  runThreads(ranks, "ranks with a bootstrap", Seconds(60), [&](int r) {
    const std::unique_ptr<Bootstrap> bootstrap = group.member(r, timeout);
    reports[static_cast<size_t>(r)] = body(r, *bootstrap);
  });
  std::string all;
  for (int r = 0; r < ranks; ++r) {
    const std::string& report = reports[static_cast<size_t>(r)];
    if (!report.empty()) all += "rank " + std::to_string(r) + ": " + report + "\n";
  }
  return all;
}

std::string runInChild(const std::function<std::string()>& body, std::chrono::seconds limit) {
  RankReport* report = shareArray<RankReport>(1);
  const pid_t pid = ::fork();
  if (pid < 0) std::abort();  // kill(-1) would reach every process
  if (pid == 0) {
    report->set(body());
    ::_exit(0);
  }
  std::string text = awaitAll({pid}, {false}, limit, [] {})[0];
  if (text.empty()) text = report->text;
  ::munmap(report, sizeof *report);
  return text;
}

ForkedRanks::ForkedRanks(const std::vector<std::vector<int>>& processes, const RankBody& body, Options options)
    : group_([&] {
        size_t ranks = 0;
        for (const std::vector<int>& process : processes) ranks += process.size();
        return static_cast<int>(ranks);
      }()),
      reports_(shareArray<RankReport>(static_cast<size_t>(group_.ranks()))),
      killed_(processes.size(), false) {
  for (size_t p = 0; p < processes.size(); ++p) {
    const pid_t pid = ::fork();
    if (pid < 0) std::abort();
    if (pid > 0) {
      pids_.push_back(pid);
      continue;
    }
    const auto runRank = [&](int r) {
      std::function<void(int)> beforeCall;
      if (options.beforeCall) beforeCall = [&options, r](int call) { options.beforeCall(r, call); };
      const std::unique_ptr<Bootstrap> bootstrap = group_.member(r, options.timeout, beforeCall);
      const std::string report = body(r, *bootstrap);
      if (!report.empty()) reports_[r].set(report);
    };
    const std::vector<int>& ranks = processes[p];
    const std::string broken = options.setup ? options.setup(static_cast<int>(p)) : "";
    if (!broken.empty()) {
      reports_[ranks[0]].set(broken);
    } else if (ranks.size() == 1) {
      runRank(ranks[0]);
    } else {
      std::vector<std::jthread> threads;
      for (const int r : ranks) threads.emplace_back(runRank, r);
    }
    ::_exit(0);
  }
}

ForkedRanks::~ForkedRanks() {
  for (const pid_t pid : pids_) ::kill(pid, SIGKILL);
  for (const pid_t pid : pids_) ::waitpid(pid, nullptr, 0);
  ::munmap(reports_, static_cast<size_t>(group_.ranks()) * sizeof(RankReport));
}

void ForkedRanks::kill(int process, int signal) const {
  if (signal == SIGKILL) killed_[static_cast<size_t>(process)] = true;
  ::kill(pid(process), signal);
}

std::string ForkedRanks::wait(std::chrono::seconds limit) {
  const std::vector<std::string> ended =
      awaitAll(std::exchange(pids_, {}), killed_, limit, [this] { group_.breakUp(); });
  std::string all;
  for (size_t p = 0; p < ended.size(); ++p) {
    if (!ended[p].empty()) all += "process " + std::to_string(p) + " " + ended[p] + "\n";
  }
  for (int r = 0; r < group_.ranks(); ++r) {
    const std::string report = reports_[r].text;
    if (!report.empty()) all += "rank " + std::to_string(r) + ": " + report + "\n";
  }
  return all;
}

std::vector<std::vector<int>> oneRankEach(int ranks) {
  std::vector<std::vector<int>> processes;
  for (int r = 0; r < ranks; ++r) processes.push_back({r});
  return processes;
}

Footprint footprint() {
  Footprint result{0, 0};
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++result.descriptors;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) ++result.mappings;
  return result;
}

}  // namespace fccl::test
