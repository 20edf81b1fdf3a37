#include "base/environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <limits>
#include <mutex>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace fccl {

namespace {

template <class T, size_t N>
using Choices = std::array<std::pair<std::string_view, T>, N>;

constexpr Choices<LogLevel, 4> kLogLevels{
    {{"none", LogLevel::kNone}, {"warn", LogLevel::kWarn}, {"info", LogLevel::kInfo}, {"trace", LogLevel::kTrace}}};
constexpr Choices<fcclStrategy_t, 8> kStrategies{{{"auto", fcclStrategyAuto},
                                                  {"oneshot", fcclStrategyOneshot},
                                                  {"twoshot", fcclStrategyTwoshot},
                                                  {"min_latency", fcclStrategyMinLatency},
                                                  {"ub", fcclStrategyUb},
                                                  {"lowprecision", fcclStrategyLowPrecision},
                                                  {"nccl", fcclStrategyNccl},
                                                  {"nccl_symmetric", fcclStrategyNcclSymmetric}}};
constexpr Choices<bool, 2> kSwitch{{{"0", false}, {"1", true}}};
constexpr Choices<fcclSharedMemory_t, 3> kSharedMemory{
    {{"auto", fcclSharedMemoryAuto}, {"memfd", fcclSharedMemoryMemfd}, {"posix", fcclSharedMemoryPosix}}};
constexpr Choices<SimdTarget, 4> kSimdTargets{{{"auto", SimdTarget::kAuto},
                                               {"generic", SimdTarget::kGeneric},
                                               {"avx2", SimdTarget::kAvx2},
                                               {"avx512", SimdTarget::kAvx512}}};

constexpr Choices<fcclDeviceType_t, 3> kDeviceTypes{
    {{"auto", fcclDeviceAuto}, {"host", fcclDeviceHost}, {"cuda", fcclDeviceCuda}}};
constexpr Choices<CudaMemoryWay, 3> kCudaMemoryWays{
    {{"auto", CudaMemoryWay::kAuto}, {"vmm", CudaMemoryWay::kVmm}, {"ipc", CudaMemoryWay::kIpc}}};

constexpr Choices<NcclShim, 3> kNcclShims{{{"0", NcclShim::kOff}, {"1", NcclShim::kOn}, {"always", NcclShim::kAlways}}};

constexpr int kMaxInt = std::numeric_limits<int>::max();
// As lib/ allows for the field of the configuration.
constexpr int kMinSlotBytes = 4096;
constexpr int kMaxSlotBytes = 64 << 20;
constexpr int kMinCudaWorkspaceBytes = 1 << 20;
constexpr int kMaxCudaWorkspaceBytes = 1 << 30;
constexpr int kMaxNcclShimBytes = 1 << 30;

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

template <class Target, class T, size_t N>
Status parseChoice(std::string_view name, std::string_view value, const Choices<T, N>& choices, Target* target) {
  const std::string wanted = lower(value);
  std::string allowed;
  for (const auto& [word, meaning] : choices) {
    if (word == wanted) {
      *target = meaning;
      return {};
    }
    allowed += allowed.empty() ? "" : ", ";
    allowed += word;
  }
  return failure(fcclInvalidArgument, "{} is '{}'; it can be {}.", name, value, allowed);
}

Status parseInt(std::string_view name, std::string_view value, int smallest, int largest, std::optional<int>* target) {
  int number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < smallest || number > largest) {
    return failure(fcclInvalidArgument, "{} is '{}'; it must be a whole number from {} to {}.", name, value, smallest,
                   largest);
  }
  *target = number;
  return {};
}

// "host:port", where an IPv6 address stands in brackets.
Status parseAddress(std::string_view name, std::string_view value, std::optional<std::string>* target) {
  const size_t colon = value.rfind(':');
  const std::string_view host = value.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.find(']') == host.size() - 1;
  std::optional<int> port;
  if (colon == std::string_view::npos || host.empty() ||
      (!bracketed && host.find_first_of("[]:") != std::string_view::npos) ||
      !parseInt(name, value.substr(colon + 1), 1, 65535, &port).ok()) {
    return failure(fcclInvalidArgument,
                   "{} is '{}'; it must be host:port with a port from 1 to 65535, an IPv6 address in brackets.", name,
                   value);
  }
  *target = value;
  return {};
}

Status take(std::string_view value, std::optional<std::string>* target) {
  *target = value;
  return {};
}

Status parseHostId(std::string_view name, std::string_view value, std::optional<std::string>* target) {
  if (value.size() > Environment::kMostHostId) {
    return failure(fcclInvalidArgument, "{} has {} characters; it can have {}.", name, value.size(),
                   Environment::kMostHostId);
  }
  return take(value, target);
}

struct Variable {
  std::string_view name;
  Status (*parse)(std::string_view name, std::string_view value, Environment* environment);
};

constexpr std::array kVariables{
    Variable{"FCCL_DEBUG",
             [](auto name, auto value, auto* e) { return parseChoice(name, value, kLogLevels, &e->debug); }},
    Variable{"FCCL_STRATEGY",
             [](auto name, auto value, auto* e) { return parseChoice(name, value, kStrategies, &e->strategy); }},
    Variable{"FCCL_PDL",
             [](auto name, auto value, auto* e) { return parseChoice(name, value, kSwitch, &e->programmaticLaunch); }},
    Variable{"FCCL_CHECK",
             [](auto name, auto value, auto* e) { return parseChoice(name, value, kSwitch, &e->checkCalls); }},
    Variable{"FCCL_TIMEOUT_MS",
             [](auto name, auto value, auto* e) { return parseInt(name, value, 0, kMaxInt, &e->timeoutMs); }},
    Variable{"FCCL_INIT_TIMEOUT_MS",
             [](auto name, auto value, auto* e) { return parseInt(name, value, 0, kMaxInt, &e->initTimeoutMs); }},
    Variable{"FCCL_SHARED_MEMORY",
             [](auto name, auto value, auto* e) { return parseChoice(name, value, kSharedMemory, &e->sharedMemory); }},
    Variable{"FCCL_BIND_CORES",
             [](auto name, auto value, auto* e) { return parseChoice(name, value, kSwitch, &e->bindCores); }},
    Variable{"FCCL_SLOT_BYTES",
             [](auto name, auto value, auto* e) {
               return parseInt(name, value, kMinSlotBytes, kMaxSlotBytes, &e->slotBytes);
             }},
    Variable{"FCCL_SOCKET_IFNAME", [](auto, auto value, auto* e) { return take(value, &e->socketIfname); }},
    Variable{"FCCL_COMM_ID", [](auto name, auto value, auto* e) { return parseAddress(name, value, &e->commId); }},
    Variable{"FCCL_SIMD",
             [](auto name, auto value, auto* e) { return parseChoice(name, value, kSimdTargets, &e->simd); }},
    Variable{"FCCL_DEVICE",
             [](auto name, auto value, auto* e) { return parseChoice(name, value, kDeviceTypes, &e->deviceType); }},
    Variable{"FCCL_ALLOW_SHARED_DEVICE",
             [](auto name, auto value, auto* e) { return parseChoice(name, value, kSwitch, &e->allowSharedDevice); }},
    Variable{"FCCL_CUDA_WORKSPACE_BYTES",
             [](auto name, auto value, auto* e) {
               return parseInt(name, value, kMinCudaWorkspaceBytes, kMaxCudaWorkspaceBytes, &e->cudaWorkspaceBytes);
             }},
    Variable{"FCCL_CUDA_MEMORY",
             [](auto name, auto value, auto* e) { return parseChoice(name, value, kCudaMemoryWays, &e->cudaMemory); }},
    Variable{"FCCL_NCCL_SHIM",
             [](auto name, auto value, auto* e) { return parseChoice(name, value, kNcclShims, &e->ncclShim); }},
    Variable{
        "FCCL_NCCL_SHIM_BYTES",
        [](auto name, auto value, auto* e) { return parseInt(name, value, 0, kMaxNcclShimBytes, &e->ncclShimBytes); }},
    Variable{"FCCL_NCCL", [](auto name, auto value, auto* e) { return parseChoice(name, value, kSwitch, &e->nccl); }},
    Variable{"FCCL_NCCL_LIB", [](auto, auto value, auto* e) { return take(value, &e->ncclLibrary); }},
    Variable{"FCCL_TOPO_FILE", [](auto, auto value, auto* e) { return take(value, &e->topologyFile); }},
    Variable{"FCCL_TOPO_DUMP", [](auto, auto value, auto* e) { return take(value, &e->topologyDump); }},
    Variable{"FCCL_TUNING_FILE", [](auto, auto value, auto* e) { return take(value, &e->tuningFile); }},
    Variable{"FCCL_AUTOTUNE",
             [](auto name, auto value, auto* e) { return parseChoice(name, value, kSwitch, &e->autotune); }},
    Variable{"FCCL_HOSTID", [](auto name, auto value, auto* e) { return parseHostId(name, value, &e->hostId); }},
};

size_t editDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

void warnUnknown(std::string_view name) {
  std::string_view closest;
  size_t distance = 3;
  for (const Variable& variable : kVariables) {
    if (const size_t d = editDistance(name, variable.name); d < distance) {
      distance = d;
      closest = variable.name;
    }
  }
  if (closest.empty()) {
    FCCL_WARN("{} is not a variable of FCCL; docs/environment.md lists those that are.", name);
  } else {
    FCCL_WARN("{} is not a variable of FCCL; did you mean {}?", name, closest);
  }
}

}  // namespace

std::vector<std::string_view> Environment::names() {
  std::vector<std::string_view> result(kVariables.size());
  std::transform(kVariables.begin(), kVariables.end(), result.begin(), [](const Variable& v) { return v.name; });
  return result;
}

Result<Environment> Environment::parse(const std::vector<std::string>& environment, std::vector<std::string>* unknown) {
  Environment result;
  for (const std::string& entry : environment) {
    const std::string_view text = entry;
    const size_t equals = text.find('=');
    if (!text.starts_with("FCCL_") || equals == std::string_view::npos) continue;
    const std::string_view name = text.substr(0, equals);
    const std::string_view value = text.substr(equals + 1);
    const auto variable =
        std::find_if(kVariables.begin(), kVariables.end(), [&](const Variable& v) { return v.name == name; });
    if (variable == kVariables.end()) {
      unknown->emplace_back(name);
    } else if (!value.empty()) {
      FCCL_TRY(variable->parse(name, value, &result));
    }
  }
  return result;
}

Result<Environment> Environment::read() {
  std::vector<std::string> environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) environment.emplace_back(*entry);
  std::vector<std::string> unknown;
  FCCL_TRY_ASSIGN(Environment result, parse(environment, &unknown));
  setLogLevel(result.debug);
  if (result.debug >= LogLevel::kWarn) {
    static std::mutex mutex;
    static std::set<std::string> warned;
    const std::lock_guard lock(mutex);
    for (const std::string& name : unknown) {
      if (warned.insert(name).second) warnUnknown(name);
    }
  }
  return result;
}

}  // namespace fccl
