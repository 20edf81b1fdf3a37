#include "tuner/tuning_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "base/check.h"
#include "base/files.h"
#include "tuner/patterns.h"
#include "tuner/strategies.h"

namespace fccl {
namespace {

using Json = nlohmann::json;
using namespace std::chrono_literals;

constexpr int kFormat = 2;
constexpr size_t kMostBytes = size_t{16} << 20;
constexpr auto kLockWait = 5s;

// What is wrong with a file, for parse() to catch beside the JSON library's own exceptions.
struct Damage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

int64_t number(const Json& json, const char* name, int64_t least, int64_t most) {
  const Json& value = json.at(name);
  if (!value.is_number_integer() || value.get<int64_t>() < least || value.get<int64_t>() > most) {
    // What holds other values may be too deep to be written out.
    const std::string shown = value.is_structured() ? "a list or an object" : value.dump().substr(0, 40);
    throw Damage(fmt::format("{} is {}, which is no number from {} to {}", name, shown, least, most));
  }
  return value.get<int64_t>();
}

double microseconds(const Json& json, const char* name) {
  const auto value = json.at(name).get<double>();
  if (!std::isfinite(value) || value < 0) throw Damage(fmt::format("{} is {}, which is no time", name, value));
  return value;
}

fcclStrategy_t strategyOf(const Json& json) {
  const auto name = json.get<std::string>();
  for (const StrategyRow& row : strategies()) {
    if (name == row.name && (isExact(row.id) || isNccl(row.id))) return row.id;
  }
  throw Damage(fmt::format("'{}' is no strategy that AUTO takes", name));
}

fcclDataType_t dtypeOf(const Json& json) {
  const auto name = json.get<std::string>();
  for (int type = fcclInt8; type <= fcclBfloat16; type++) {
    const auto dtype = static_cast<fcclDataType_t>(type);
    if (name == host::dtypeName(dtype)) return dtype;
  }
  throw Damage(fmt::format("'{}' is no data type", name));
}

fcclFusionPattern_t patternOf(const Json& json) {
  const auto name = json.get<std::string>();
  const auto* pattern = std::ranges::find(kPatterns, name, &PatternTraits::name);
  if (pattern == kPatterns.end()) throw Damage(fmt::format("'{}' is no pattern", name));
  return static_cast<fcclFusionPattern_t>(pattern - kPatterns.begin());
}

constexpr int64_t kMost = int64_t{1} << 46;

TuningPoint pointOf(const Json& json) {
  TuningPoint point;
  point.size = number(json, "size", 1, kMost);
  point.choice = strategyOf(json.at("choice"));
  for (const Json& time : json.at("times")) {
    point.times.push_back({strategyOf(time.at("strategy")), microseconds(time, "warm"), microseconds(time, "cold")});
  }
  if (std::ranges::find(point.times, point.choice, &TuningTime::strategy) == point.times.end()) {
    throw Damage(fmt::format("the choice of size {} has no time", point.size));
  }
  if (!isExact(point.choice)) {
    throw Damage(fmt::format("the choice of size {} is {}, which AUTO does not take for its time", point.size,
                             findStrategy(point.choice)->name));
  }
  return point;
}

Json jsonOf(const TuningPoint& point) {
  Json json = {{"size", point.size}, {"choice", findStrategy(point.choice)->name}, {"times", Json::array()}};
  for (const TuningTime& time : point.times) {
    json["times"].push_back(
        {{"strategy", findStrategy(time.strategy)->name}, {"warm", time.warm}, {"cold", time.cold}});
  }
  return json;
}

TuningTable tableOf(const Json& json) {
  TuningTable table;
  for (const Json& one : json) {
    TuningSeries series;
    series.pattern = patternOf(one.at("pattern"));
    series.dtype = dtypeOf(one.at("dtype"));
    series.hidden = number(one, "hidden", 0, kMost);
    series.windows = one.at("windows").get<bool>();
    for (const Json& point : one.at("points")) table.put(series, pointOf(point));
  }
  return table;
}

Json jsonOf(const TuningTable& table) {
  Json json = Json::array();
  for (const auto& [series, points] : table.series()) {
    Json one = {{"pattern", kPatterns[static_cast<size_t>(series.pattern)].name},
                {"dtype", host::dtypeName(series.dtype)},
                {"hidden", series.hidden},
                {"windows", series.windows},
                {"points", Json::array()}};
    for (const auto& [size, point] : points) one["points"].push_back(jsonOf(point));
    json.push_back(std::move(one));
  }
  return json;
}

TuningMachine machineOf(const Json& json) {
  TuningMachine machine;
  machine.topology = json.at("topology").get<std::string>();
  machine.version = json.at("version").get<std::string>();
  const auto device = json.at("device").get<std::string>();
  if (device != "host" && device != "cuda") throw Damage(fmt::format("'{}' is no device", device));
  machine.device = device == "cuda" ? fcclDeviceCuda : fcclDeviceHost;
  machine.ranks = static_cast<int>(number(json, "ranks", 1, 1 << 20));
  machine.ranksPerDevice = static_cast<int>(number(json, "ranksPerDevice", 1, 1 << 20));
  machine.workspaceBytes = static_cast<size_t>(number(json, "workspaceBytes", 0, kMost));
  return machine;
}

Json jsonOf(const TuningMachine& machine) {
  return {{"topology", machine.topology},
          {"version", machine.version},
          {"device", machine.device == fcclDeviceCuda ? "cuda" : "host"},
          {"ranks", machine.ranks},
          {"ranksPerDevice", machine.ranksPerDevice},
          {"workspaceBytes", machine.workspaceBytes}};
}

Status notWritten(const std::string& path, int error) {
  return failure(fcclSystemError, "tuning file {} cannot be written: {}. Check FCCL_TUNING_FILE.", path,
                 fileErrorText(error));
}

// The right to replace a file: a lock on the file itself, which is made where there is none. It ends with the process
// that holds it, and leaves nothing behind.
class FileLock {
 public:
  FileLock() = default;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  // 0, or errno; EWOULDBLOCK where another process keeps it.
  int take(const std::string& path) {
    const auto deadline = std::chrono::steady_clock::now() + kLockWait;
    while (true) {
      if (descriptor_ < 0) descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
      if (descriptor_ < 0) return errno;
      if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) {
        if (isStill(path)) return 0;
        // Whoever had the lock has put another file there: the lock that counts is on that one.
        ::close(descriptor_);
        descriptor_ = -1;
        continue;
      }
      if (errno != EWOULDBLOCK && errno != EINTR) return errno;
      if (std::chrono::steady_clock::now() >= deadline) return EWOULDBLOCK;
      std::this_thread::sleep_for(2ms);
    }
  }

 private:
  bool isStill(const std::string& path) const {
    struct stat locked {};
    struct stat there {};
    return ::fstat(descriptor_, &locked) == 0 && ::stat(path.c_str(), &there) == 0 && locked.st_dev == there.st_dev &&
           locked.st_ino == there.st_ino;
  }

  int descriptor_ = -1;
};

}  // namespace

std::string libraryVersion() { return fmt::format("{}.{}.{}", FCCL_MAJOR, FCCL_MINOR, FCCL_PATCH); }

std::string describe(const TuningMachine& machine) {
  std::string text = fmt::format("{}, {} rank{}", machine.device == fcclDeviceCuda ? "CUDA" : "HOST", machine.ranks,
                                 machine.ranks == 1 ? "" : "s");
  if (machine.ranksPerDevice > 1) text += fmt::format(", up to {} on a GPU", machine.ranksPerDevice);
  return text;
}

Result<TuningFile> TuningFile::parse(const std::string& text, const std::string& nameInErrors) {
  const auto damaged = [&](const char* what) {
    return failure(fcclInvalidArgument, "{} is no tuning file, or a damaged one: {}. Delete it, or name another.",
                   nameInErrors, what);
  };
  TuningFile file;
  try {
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) return file;
    const Json json = Json::parse(text);
    if (number(json, "format", 1, 1 << 20) != kFormat) {
      return damaged(fmt::format("its format is not {}, which this version reads", kFormat).c_str());
    }
    for (const Json& machine : json.at("machines")) file.merge(machineOf(machine), tableOf(machine.at("series")));
    return file;
  } catch (const Json::exception& error) {
    return damaged(error.what());
  } catch (const Damage& damage) {
    return damaged(damage.what());
  }
}

Result<TuningFile> TuningFile::read(const std::string& path) {
  std::string text;
  const int error = readFile(path, kMostBytes + 1, &text);
  if (error == ENOENT) return TuningFile();
  if (error != 0) {
    return failure(fcclInvalidArgument, "tuning file {} cannot be read: {}. Check FCCL_TUNING_FILE.", path,
                   fileErrorText(error));
  }
  if (text.size() > kMostBytes) {
    return failure(fcclInvalidArgument, "tuning file {} is longer than {} MiB; that is none.", path, kMostBytes >> 20);
  }
  return parse(text, fmt::format("tuning file {}", path));
}

std::string TuningFile::json() const {
  Json json = {{"format", kFormat}, {"machines", Json::array()}};
  for (const auto& [machine, table] : machines_) {
    Json one = jsonOf(machine);
    one["series"] = jsonOf(table);
    json["machines"].push_back(std::move(one));
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

const TuningTable* TuningFile::find(const TuningMachine& machine) const {
  const auto found = std::ranges::find(machines_, machine, &std::pair<TuningMachine, TuningTable>::first);
  return found == machines_.end() ? nullptr : &found->second;
}

void TuningFile::merge(const TuningMachine& machine, const TuningTable& newer) {
  const auto found = std::ranges::find(machines_, machine, &std::pair<TuningMachine, TuningTable>::first);
  if (found == machines_.end()) {
    machines_.emplace_back(machine, newer);
  } else {
    found->second.merge(newer);
  }
}

Status saveTuning(const std::string& path, const TuningMachine& machine, const TuningTable& newer) {
  FileLock lock;
  if (const int error = lock.take(path); error == EWOULDBLOCK) {
    return failure(fcclSystemError, "tuning file {} cannot be written: another process has kept it locked for {} s.",
                   path, kLockWait.count());
  } else if (error != 0) {
    return notWritten(path, error);
  }
  FCCL_TRY_ASSIGN(TuningFile file, TuningFile::read(path));
  file.merge(machine, newer);
  const int error = replaceFile(path, file.json());
  return error == 0 ? Status() : notWritten(path, error);
}

}  // namespace fccl
