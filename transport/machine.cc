#include "transport/machine.h"

#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <mutex>
#include <sstream>

#include "base/check.h"

namespace fccl {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// The value of "name value" or "name: value kB" in a kernel file, in the file's unit.
bool readField(const std::string& path, const std::string& name, uint64_t* value) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string key;
    if (fields >> key >> *value && key == name) return true;
  }
  return false;
}

// A file that holds one number, or "max".
bool readLimit(const std::string& path, uint64_t* value) {
  std::ifstream file(path);
  if (file >> *value) return true;
  *value = kUnlimited;
  return false;
}

uint64_t machineFree() {
  uint64_t available = 0;
  uint64_t swap = 0;
  if (!readField("/proc/meminfo", "MemAvailable:", &available)) return kUnlimited;
  readField("/proc/meminfo", "SwapFree:", &swap);
  return (available + swap) * 1024;
}

struct GroupFiles {
  const char* mount;
  const char* limit;
  const char* usage;
};

// The smallest room that a control group leaves, from the process's own up to the root of what is mounted. Page cache
// of the group counts as room, since the kernel gives it up first.
uint64_t controlGroupFree() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  uint64_t least = kUnlimited;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    GroupFiles files;
    if (controllers.empty()) {
      files = {"/sys/fs/cgroup", "memory.max", "memory.current"};
    } else if (controllers == "memory") {
      files = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"};
    } else {
      continue;
    }
    for (std::string path = line.substr(second + 1);; path.resize(path.rfind('/'))) {
      if (path == "/") path.clear();
      const std::string group = files.mount + path + "/";
      uint64_t limit;
      uint64_t used;
      if (readLimit(group + files.limit, &limit) && readLimit(group + files.usage, &used)) {
        uint64_t cache = 0;
        uint64_t part = 0;
        if (readField(group + "memory.stat", "inactive_file", &part)) cache += part;
        if (readField(group + "memory.stat", "active_file", &part)) cache += part;
        used -= std::min(used, cache);
        least = std::min(least, limit - std::min(limit, used));
      }
      if (path.find('/') == std::string::npos) break;
    }
  }
  return least;
}

struct TokenPage {
  ProcessToken token;
  pid_t pid;
};

}  // namespace

Status randomBytes(void* target, size_t bytes) {
  char* next = static_cast<char*>(target);
  while (bytes > 0) {
    const ssize_t got = ::getrandom(next, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    FCCL_SYS(got);
    next += got;
    bytes -= static_cast<size_t>(got);
  }
  return {};
}

Result<std::string> randomName() {
  uint64_t words[2];
  FCCL_TRY(randomBytes(words, sizeof words));
  return fmt::format("{:016x}{:016x}", words[0], words[1]);
}

std::string bootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id;
}

Result<ProcessToken> processToken() {
  // A page that the kernel wipes in every child, also in one made by a bare clone() that runs no fork handlers. It is
  // kept to the end of the process. The process id covers kernels that refuse the advice.
  static std::mutex mutex;
  static TokenPage* page = nullptr;
  std::lock_guard lock(mutex);
  if (page == nullptr) {
    void* made = ::mmap(nullptr, sizeof(TokenPage), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return failure(fcclSystemError, "mmap of one page failed: {}", std::strerror(errno));
    (void)::madvise(made, sizeof(TokenPage), MADV_WIPEONFORK);
    page = static_cast<TokenPage*>(made);
  }
  if (page->pid != ::getpid()) {
    FCCL_TRY(randomBytes(&page->token, sizeof page->token));
    page->pid = ::getpid();
  }
  return page->token;
}

Status checkFreeMemory(size_t own, size_t total) {
  const uint64_t machine = machineFree();
  if (total > machine) {
    return failure(
        fcclSystemError,
        "{} of memory are needed, for all ranks together, but this machine has {} available; allocate less, or make "
        "FCCL_SLOT_BYTES smaller or the ranks fewer",
        describeBytes(total), describeBytes(machine));
  }
  const uint64_t group = controlGroupFree();
  if (own > group) {
    return failure(fcclSystemError,
                   "{} of memory are needed for the ranks of this process, but the memory limit of its control group "
                   "(container) leaves {}; raise the limit, or make FCCL_SLOT_BYTES or the window smaller",
                   describeBytes(own), describeBytes(group));
  }
  return {};
}

std::string describeBytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double scaled = static_cast<double>(bytes);
  size_t unit = 0;
  while (scaled >= 1024 && unit + 1 < std::size(kUnits)) {
    scaled /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} bytes", bytes);
  const bool exact = bytes % (uint64_t{1} << (10 * unit)) == 0;
  return exact ? fmt::format("{:.0f} {}", scaled, kUnits[unit])
               : fmt::format("{:.1f} {} ({} bytes)", scaled, kUnits[unit], bytes);
}

}  // namespace fccl
