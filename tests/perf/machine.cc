#include "tests/perf/machine.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <set>
#include <stdexcept>

namespace fccl::perf {
namespace {

const std::string kCpuFolder = "/sys/devices/system/cpu/cpu";

std::string firstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The value behind "name   : value" of /proc/cpuinfo or /proc/meminfo, each time it stands there.
std::vector<std::string> fieldsOf(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::vector<std::string> values;
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, name.size(), name) != 0) continue;
    const size_t start = line.find_first_not_of(" \t", colon + 1);
    values.push_back(start == std::string::npos ? "" : line.substr(start));
  }
  return values;
}

int firstNumber(const std::string& text) {
  int number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

std::vector<Cache> cachesOfCpu0() {
  std::vector<Cache> caches;
  for (int index = 0; index < 8; index++) {
    const std::string folder = fmt::format("{}0/cache/index{}/", kCpuFolder, index);
    const std::string size = firstLine(folder + "size");
    if (size.empty()) break;
    caches.push_back({fmt::format("L{} {}", firstLine(folder + "level"), firstLine(folder + "type")), size,
                      firstLine(folder + "shared_cpu_list")});
  }
  if (!caches.empty()) return caches;
  // Some virtual machines hide them from sysfs; the C library then asks the CPU itself.
  const auto add = [&](const char* name, int question) {
    const long bytes = sysconf(question);
    if (bytes > 0) caches.push_back({name, fmt::format("{}K", bytes / 1024), ""});
  };
  add("L1 Data", _SC_LEVEL1_DCACHE_SIZE);
  add("L2 Unified", _SC_LEVEL2_CACHE_SIZE);
  add("L3 Unified", _SC_LEVEL3_CACHE_SIZE);
  return caches;
}

}  // namespace

Machine describeMachine() {
  Machine machine;
  const std::vector<std::string> models = fieldsOf("/proc/cpuinfo", "model name");
  if (!models.empty()) machine.cpu = models.front();
  const std::vector<std::string> sockets = fieldsOf("/proc/cpuinfo", "physical id");
  machine.sockets = static_cast<int>(std::set<std::string>(sockets.begin(), sockets.end()).size());
  machine.cpus = static_cast<int>(sysconf(_SC_NPROCESSORS_CONF));
  machine.usableCpus = static_cast<int>(usableCpus().size());
  const std::vector<std::string> memory = fieldsOf("/proc/meminfo", "MemTotal");
  if (!memory.empty()) machine.memoryMiB = firstNumber(memory.front()) / 1024;
  utsname system{};
  if (uname(&system) == 0) machine.kernel = fmt::format("{} {}", system.sysname, system.release);
  machine.caches = cachesOfCpu0();
  return machine;
}

std::vector<int> usableCpus() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) != 0) return {};
  std::vector<int> first;
  std::vector<int> further;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &mask)) continue;
    const std::string siblings = firstLine(fmt::format("{}{}/topology/thread_siblings_list", kCpuFolder, cpu));
    const bool isFirst = siblings.empty() || firstNumber(siblings) == cpu;
    (isFirst ? first : further).push_back(cpu);
  }
  first.insert(first.end(), further.begin(), further.end());
  return first;
}

void pinToCore(int rank) {
  const std::vector<int> cpus = usableCpus();
  if (cpus.empty()) throw std::runtime_error("--pin: the CPUs of this process cannot be read");
  const int cpu = cpus[static_cast<size_t>(rank) % cpus.size()];
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(cpu, &mask);
  const int error = pthread_setaffinity_np(pthread_self(), sizeof(mask), &mask);
  if (error != 0)
    throw std::runtime_error(fmt::format("--pin: binding to CPU {} failed: {}", cpu, std::strerror(error)));
}

}  // namespace fccl::perf
