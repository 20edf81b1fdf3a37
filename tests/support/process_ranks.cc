#include "tests/support/process_ranks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "tests/support/catch.h"
#include "tests/support/thread_ranks.h"

extern char** environ;

namespace fccl::test {
namespace {

// What the child finds in its environment: "<program> <rank> <ranks> <channel's fd> <argument>".
constexpr const char* kJobVariable = "RANK_PROCESS_JOB";
constexpr const char* kHiddenTest = "rank process";

std::map<std::string, RankProgram::Body>& programs() {
  static std::map<std::string, RankProgram::Body> all;
  return all;
}

using Clock = std::chrono::steady_clock;

Milliseconds slowed(Milliseconds limit) { return std::chrono::duration_cast<Milliseconds>(limit * slowness()); }

}  // namespace

LineChannel::LineChannel(LineChannel&& other) noexcept { *this = std::move(other); }

LineChannel& LineChannel::operator=(LineChannel&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(pending_, other.pending_);
  return *this;
}

LineChannel::~LineChannel() {
  if (fd_ >= 0) close(fd_);
}

bool LineChannel::send(std::string_view line) {
  std::string text(line);
  std::replace(text.begin(), text.end(), '\n', ' ');
  text += '\n';
  size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t now = ::send(fd_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) return false;
    sent += static_cast<size_t>(now);
  }
  return true;
}

int LineChannel::receive(std::string* line, Milliseconds limit) {
  const auto end = Clock::now() + limit;
  for (;;) {
    if (const size_t at = pending_.find('\n'); at != std::string::npos) {
      *line = pending_.substr(0, at);
      pending_.erase(0, at + 1);
      return 1;
    }
    const auto left = std::chrono::duration_cast<Milliseconds>(end - Clock::now());
    pollfd waiting{fd_, POLLIN, 0};
    const int ready = poll(&waiting, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) return 0;
    char buffer[4096];
    const ssize_t got = recv(fd_, buffer, sizeof(buffer), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return -1;
    pending_.append(buffer, static_cast<size_t>(got));
  }
}

std::string RankProcess::receive(Milliseconds limit) {
  std::string line;
  if (channel_.receive(&line, slowed(limit)) != 1) std::_Exit(4);
  return line;
}

fcclUniqueId RankProcess::exchangeId() {
  fcclUniqueId id{};
  if (rank == 0) {
    const fcclResult_t result = fcclGetUniqueId(&id);
    if (result != fcclSuccess) {
      sendResult("failed", result, nullptr);
      std::_Exit(3);
    }
    std::string text = "id ";
    for (const char byte : id.internal) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    send(text);
  }
  const std::string text = receive();
  for (size_t i = 0; i < sizeof(id.internal); ++i) {
    id.internal[i] = static_cast<char>(std::stoi(text.substr(3 + 2 * i, 2), nullptr, 16));
  }
  return id;
}

fcclComm_t RankProcess::init(const fcclConfig_t* config) {
  const fcclUniqueId id = exchangeId();
  fcclComm_t comm = nullptr;
  fcclConfig_t host = FCCL_CONFIG_INITIALIZER;
  host.deviceType = fcclDeviceHost;
  const fcclResult_t result = fcclCommInit(&comm, ranks, id, rank, config != nullptr ? config : &host);
  if (result != fcclSuccess) {
    sendResult("failed", result, nullptr);
    std::_Exit(3);
  }
  return comm;
}

void RankProcess::sendResult(std::string_view word, fcclResult_t result, fcclComm_t comm) {
  send(fmt::format("{} {} {}", word, static_cast<int>(result), fcclGetLastError(comm)));
}

RankProgram::RankProgram(const char* name, Body body) { programs()[name] = body; }

ProcessRanks::ProcessRanks(const std::string& program, int ranks, const Environment& environment,
                           const std::string& argument) {
  for (int rank = 0; rank < ranks; ++rank) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) FAIL("socketpair: " << std::strerror(errno));
    Process& process = processes_.emplace_back();
    process.channel = LineChannel(ends[0]);
    fcntl(ends[1], F_SETFD, 0);  // this one goes to the child

    Environment all = environment;
    all[kJobVariable] = fmt::format("{} {} {} {} {}", program, rank, ranks, ends[1], argument);
    std::vector<std::string> texts;
    for (char** each = environ; *each != nullptr; ++each) {
      const std::string_view text = *each;
      if (!all.contains(std::string(text.substr(0, text.find('='))))) texts.emplace_back(text);
    }
    for (const auto& [name, value] : all) texts.push_back(fmt::format("{}={}", name, value));
    std::vector<char*> pointers;
    for (std::string& text : texts) pointers.push_back(text.data());
    pointers.push_back(nullptr);

    std::string self = "/proc/self/exe";
    std::string test = kHiddenTest;
    char* arguments[] = {self.data(), test.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    // Catch's own report of the child is of no interest; what it prints to stderr is.
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    const int error = posix_spawn(&process.pid, "/proc/self/exe", &actions, nullptr, arguments, pointers.data());
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (error != 0) {
      process.pid = -1;
      FAIL("posix_spawn of rank " << rank << ": " << std::strerror(error));
    }
  }
}

ProcessRanks::~ProcessRanks() {
  for (Process& process : processes_) {
    if (process.pid > 0) ::kill(process.pid, SIGKILL);
  }
  for (Process& process : processes_) {
    if (process.pid > 0) waitpid(process.pid, nullptr, 0);
  }
}

void ProcessRanks::relayId() {
  const std::string id = expect(0, "id");
  tellAll("id " + id);
}

void ProcessRanks::tell(int rank, std::string_view line) { processes_[static_cast<size_t>(rank)].channel.send(line); }

void ProcessRanks::tellAll(std::string_view line) {
  for (int rank = 0; rank < size(); ++rank) tell(rank, line);
}

std::string ProcessRanks::expect(int rank, std::string_view word, Milliseconds limit) {
  std::string line;
  const int got = processes_[static_cast<size_t>(rank)].channel.receive(&line, slowed(limit));
  if (got == 0) FAIL("rank " << rank << " did not say '" << word << "' within " << slowed(limit).count() << " ms");
  if (got < 0) FAIL("rank " << rank << " ended before it said '" << word << "'");
  const bool begins = line.starts_with(word) && (line.size() == word.size() || line[word.size()] == ' ');
  if (!begins) FAIL("rank " << rank << " said '" << line << "' in place of '" << word << "'");
  return line.size() == word.size() ? "" : line.substr(word.size() + 1);
}

void ProcessRanks::expectAll(std::string_view word, Milliseconds limit) {
  for (int rank = 0; rank < size(); ++rank) expect(rank, word, limit);
}

RankResult ProcessRanks::expectResult(int rank, std::string_view word, Milliseconds limit) {
  const std::string text = expect(rank, word, limit);
  RankResult result;
  size_t digits = 0;
  result.result = static_cast<fcclResult_t>(std::stoi(text, &digits));
  result.message = text.substr(std::min(text.size(), digits + 1));
  return result;
}

void ProcessRanks::signal(int rank, int number) {
  Process& process = processes_[static_cast<size_t>(rank)];
  if (::kill(process.pid, number) != 0) FAIL("kill of rank " << rank << ": " << std::strerror(errno));
  if (number == SIGKILL) {
    waitpid(process.pid, nullptr, 0);
    process.pid = -1;
  }
}

int ProcessRanks::waitExit(int rank, Milliseconds limit) {
  Process& process = processes_[static_cast<size_t>(rank)];
  const auto end = Clock::now() + slowed(limit);
  int how = 0;
  while (waitpid(process.pid, &how, WNOHANG) != process.pid) {
    if (Clock::now() > end) FAIL("rank " << rank << " did not end within " << slowed(limit).count() << " ms");
    std::this_thread::sleep_for(Milliseconds(2));
  }
  process.pid = -1;
  return WIFSIGNALED(how) ? -WTERMSIG(how) : WEXITSTATUS(how);
}

void ProcessRanks::expectExit(int rank, int status, Milliseconds limit) {
  const int got = waitExit(rank, limit);
  if (got != status) FAIL("rank " << rank << " ended with status " << got << " in place of " << status);
}

void ProcessRanks::expectAllExit(int status) {
  for (int rank = 0; rank < size(); ++rank) {
    if (pid(rank) > 0) expectExit(rank, status);
  }
}

std::set<std::string> fcclNames() {
  std::set<std::string> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", ignored)) {
    const std::string name = entry.path().filename();
    if (name.find("fccl") != std::string::npos) found.insert("/dev/shm/" + name);
  }
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    const size_t at = line.find('@');
    if (at != std::string::npos && line.find("fccl", at) != std::string::npos) found.insert(line.substr(at));
  }
  return found;
}

std::set<std::string> fcclLeftovers(const std::set<std::string>& before) {
  std::set<std::string> suspects;
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::set<std::string> still;
    for (const std::string& name : fcclNames()) {
      if (!before.contains(name) && (attempt == 0 || suspects.contains(name))) still.insert(name);
    }
    suspects = std::move(still);
    if (suspects.empty()) break;
    std::this_thread::sleep_for(Milliseconds(50));
  }
  return suspects;
}

}  // namespace fccl::test

// Not a test: the body of a rank's process, hidden from the list of tests.
TEST_CASE("rank process", "[.rank-process]") {
  using namespace fccl::test;
  const char* job = std::getenv(kJobVariable);
  if (job == nullptr) FCCL_SKIP("this is what ProcessRanks starts; there is no job in the environment");
  char name[64] = {};
  int rank = 0;
  int ranks = 0;
  int fd = -1;
  int consumed = 0;
  REQUIRE(std::sscanf(job, "%63s %d %d %d %n", name, &rank, &ranks, &fd, &consumed) == 4);
  REQUIRE(programs().contains(name));
  RankProcess self(rank, ranks, job + consumed, LineChannel(fd));
  const int status = programs()[name](self);
  std::fflush(stderr);
#if defined(__SANITIZE_ADDRESS__)
  std::exit(status);  // so that leaks are looked for
#else
  std::_Exit(status);
#endif
}
