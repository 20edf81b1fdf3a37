// The tuning file: what is written is read again, what is no tuning file is refused with a sentence and left alone,
// and writers do not lose each other's results.
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/support/catch.h"
#include "tests/support/scoped_file.h"
#include "tests/support/text.h"
#include "tuner/tuning_file.h"

using namespace fccl;
using fccl::test::contains;
using fccl::test::ScopedFile;

namespace {

TuningMachine machine(int ranks = 2) {
  TuningMachine result;
  result.topology = "0123456789abcdef";
  result.version = libraryVersion();
  result.device = fcclDeviceCuda;
  result.ranks = ranks;
  result.ranksPerDevice = ranks;
  result.workspaceBytes = size_t{64} << 20;
  return result;
}

TuningTable table(int64_t size, int64_t hidden = 8192) {
  TuningSeries series;
  series.pattern = fcclPatternResidualRmsNormQuantFp8;
  series.hidden = hidden;
  TuningPoint point;
  point.size = size;
  point.choice = fcclStrategyTwoshot;
  point.times = {{fcclStrategyOneshot, 3.123456789, 1e-3}, {fcclStrategyTwoshot, 2.0 / 3, 0.1}};
  TuningTable result;
  result.put(series, point);
  return result;
}

std::string errorOf(const Status& status) {
  CHECK_FALSE(status.ok());
  CHECK(status.message().ends_with("."));
  return status.message();
}

}  // namespace

TEST_CASE("tuning file: what is written is read again, bit by bit", "[tuning]") {
  const ScopedFile file("tuning.json");
  REQUIRE(TuningFile::read(file.path()).value().machines().empty());
  TuningTable all = table(64);
  all.merge(table(128));
  TuningSeries plain;
  plain.dtype = fcclInt8;
  plain.windows = true;
  TuningPoint point = *all.at(all.series().begin()->first, 64);
  point.size = int64_t{1} << 40;
  all.put(plain, point);
  REQUIRE(saveTuning(file.path(), machine(), all).ok());
  const TuningFile read = TuningFile::read(file.path()).value();
  REQUIRE(read.find(machine()) != nullptr);
  CHECK(*read.find(machine()) == all);
  CHECK(TuningFile::parse(read.json(), "again").value().json() == read.json());
  struct stat status {};
  REQUIRE(::stat(file.path().c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0644);
}

TEST_CASE("tuning file: results are for one topology, version, device, group and workspace", "[tuning]") {
  const ScopedFile file("tuning.json");
  REQUIRE(saveTuning(file.path(), machine(), table(64)).ok());
  REQUIRE(saveTuning(file.path(), machine(8), table(32)).ok());
  const TuningFile read = TuningFile::read(file.path()).value();
  CHECK(read.machines().size() == 2);
  CHECK(*read.find(machine(8)) == table(32));
  const auto finds = [&](auto change) {
    TuningMachine other = machine();
    change(other);
    return read.find(other) != nullptr;
  };
  CHECK(finds([](TuningMachine&) {}));
  CHECK_FALSE(finds([](TuningMachine& m) { m.topology[0] = 'f'; }));
  CHECK_FALSE(finds([](TuningMachine& m) { m.version = "0.0.9"; }));
  CHECK_FALSE(finds([](TuningMachine& m) { m.device = fcclDeviceHost; }));
  CHECK_FALSE(finds([](TuningMachine& m) { m.ranks = 4; }));
  CHECK_FALSE(finds([](TuningMachine& m) { m.ranksPerDevice = 1; }));
  CHECK_FALSE(finds([](TuningMachine& m) { m.workspaceBytes /= 2; }));
}

TEST_CASE("tuning file: newer points take the place of older ones, the others stay", "[tuning]") {
  const ScopedFile file("tuning.json");
  REQUIRE(saveTuning(file.path(), machine(), table(64)).ok());
  TuningTable newer = table(64);
  const TuningSeries series = newer.series().begin()->first;
  TuningPoint point = *newer.at(series, 64);
  point.choice = fcclStrategyOneshot;
  newer.put(series, point);
  newer.merge(table(96));
  REQUIRE(saveTuning(file.path(), machine(), newer).ok());
  const TuningFile read = TuningFile::read(file.path()).value();
  CHECK(*read.find(machine()) == newer);
}

TEST_CASE("tuning file: times of NCCL's are kept, to be compared with", "[tuning]") {
  TuningTable all = table(64);
  TuningPoint point = *all.at(all.series().begin()->first, 64);
  point.times.push_back({fcclStrategyNccl, 0.25, 0.5});
  point.times.push_back({fcclStrategyNcclSymmetric, 1, 2});
  all.put(all.series().begin()->first, point);
  TuningFile file;
  file.merge(machine(), all);
  const TuningFile read = TuningFile::parse(file.json(), "again").value();
  CHECK(*read.find(machine()) == all);
  CHECK(read.find(machine())->at(all.series().begin()->first, 64)->choice == fcclStrategyTwoshot);
}

TEST_CASE("tuning file: damaged and foreign files are refused and left as they are", "[tuning]") {
  const ScopedFile file("tuning.json");
  REQUIRE(saveTuning(file.path(), machine(), table(64)).ok());
  const std::string good = file.read();
  const auto with = [&](const std::string& part, const std::string& other) {
    std::string text = good;
    const size_t at = text.find(part);
    REQUIRE(at != std::string::npos);
    return text.replace(at, part.size(), other);
  };
  const auto withAll = [&](const std::string& part, const std::string& other) {
    std::string text = good;
    for (size_t at = 0; (at = text.find(part)) != std::string::npos;) text.replace(at, part.size(), other);
    return text;
  };
  const std::string damaged[] = {
      "hello",
      "[1, 2]",
      "{}",
      "{\"format\": 2}",
      good + "}",
      with("\"format\": 2", "\"format\": 1"),
      with("\"choice\": \"TWOSHOT\"", "\"choice\": \"LOWPRECISION\""),
      with("\"choice\": \"TWOSHOT\"", "\"choice\": \"NCCL\""),
      with("\"choice\": \"TWOSHOT\"", "\"choice\": \"UB\""),
      withAll("TWOSHOT", "NCCL"),
      with("\"size\": 64", "\"size\": 0"),
      with("\"size\": 64", "\"size\": 1e99"),
      with("\"size\": 64", "\"size\": \"64\""),
      with("\"RESIDUAL_RMS_NORM_QUANT_FP8\"", "\"RESIDUAL_RMS_NORM_QUANT_FP9\""),
      with("\"device\": \"cuda\"", "\"device\": \"tpu\""),
      with("\"ranks\": 2", "\"ranks\": -2"),
      with("\"warm\": 3.123456789", "\"warm\": -1"),
      with("\"warm\": 3.123456789", "\"warm\": null"),
  };
  for (const std::string& text : damaged) {
    file.write(text);
    INFO(text);
    const std::string error = errorOf(TuningFile::read(file.path()).status());
    CHECK(contains(error, file.path() + " is no tuning file, or a damaged one: "));
    CHECK_FALSE(saveTuning(file.path(), machine(), table(32)).ok());
    CHECK(file.read() == text);
  }
  // Wherever it is cut off.
  for (size_t bytes = 2; bytes + 2 < good.size(); bytes += 7) {
    CHECK_FALSE(TuningFile::parse(good.substr(0, bytes), "cut").ok());
  }
  // An empty one is a new one.
  file.write(" \n");
  CHECK(TuningFile::read(file.path()).value().machines().empty());
  CHECK(saveTuning(file.path(), machine(), table(64)).ok());
  CHECK(file.read() == good);
}

TEST_CASE("tuning file: where it cannot be, the error says so and nothing is left behind", "[tuning]") {
  CHECK(contains(errorOf(saveTuning("/nonexistent/tuning.json", machine(), table(64))),
                 "/nonexistent/tuning.json cannot be written: No such file or directory. Check FCCL_TUNING_FILE."));
  const ScopedFile folder("tuning-folder");
  std::filesystem::create_directory(folder.path());
  CHECK(contains(errorOf(TuningFile::read(folder.path()).status()), "cannot be read: Is a directory"));
  CHECK_FALSE(saveTuning(folder.path(), machine(), table(64)).ok());
  CHECK(std::filesystem::is_empty(folder.path()));
  // Root may write everywhere.
  if (::geteuid() == 0) return;
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  CHECK(contains(errorOf(saveTuning(folder.path() + "/t.json", machine(), table(64))), "Permission denied"));
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_all);
}

TEST_CASE("tuning file: processes that write at once lose nothing, and readers find it whole", "[tuning]") {
  constexpr int kWriters = 4;
  constexpr int kTimes = 25;
  const ScopedFile file("tuning.json");
  pid_t writers[kWriters];
  for (int w = 0; w < kWriters; w++) {
    writers[w] = ::fork();
    REQUIRE(writers[w] >= 0);
    if (writers[w] != 0) continue;
    bool good = true;
    for (int i = 0; i < kTimes; i++) good = good && saveTuning(file.path(), machine(), table(1 + i, 16 * (w + 1))).ok();
    ::_exit(good ? 0 : 1);
  }
  size_t seen = 0;
  for (int running = kWriters; running > 0;) {
    const Result<TuningFile> read = TuningFile::read(file.path());
    if (!read.ok()) FAIL_CHECK(read.status().message());
    if (read.ok() && read.value().find(machine()) != nullptr) {
      const size_t points = read.value().find(machine())->points();
      CHECK(points >= seen);
      seen = points;
    }
    int status = 0;
    const pid_t ended = ::waitpid(-1, &status, WNOHANG);
    if (ended <= 0) continue;
    CHECK(status == 0);
    running--;
  }
  CHECK(TuningFile::read(file.path()).value().find(machine())->points() == kWriters * kTimes);
  const std::string name = std::filesystem::path(file.path()).filename();
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::temp_directory_path())) {
    const std::string other = entry.path().filename();
    CHECK_FALSE((other.starts_with(name) && other != name));
  }
}
