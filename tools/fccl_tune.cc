// fccl-tune: measures the strategies on this machine and keeps the results in a tuning file, for programs that do not
// call fcclCommTune themselves; or says what AUTO's choices cost against the best ones.
//   fccl-tune --ranks 8 --hidden 8192 -o tuning.json
//   FCCL_TUNING_FILE=tuning.json engine ...
//   fccl-tune --ranks 8 --regret --json regret.json
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "lib/asked_call.h"
#include "lib/testing.h"
#include "lib/tuning_run.h"
#include "tools/regret.h"
#include "tools/words.h"
#include "tuner/patterns.h"

namespace fccl {
namespace {

using namespace tools;

struct Words {
  std::string device = "auto";
  int ranks = 2;
  bool sharedDevice = false;
  std::vector<std::string> patterns;
  std::string dtype = "bf16";
  std::vector<int64_t> hidden = {8192};
  std::vector<int64_t> tokens;
  bool windows = false;
  int budgetMs = 60'000;
  std::string output;
  bool regret = false;
  std::string json;
};

void require(fcclResult_t result, fcclComm_t comm) {
  if (result != fcclSuccess) throw std::runtime_error(fcclGetLastError(comm));
}

// All ranks in this process.
class Group {
 public:
  explicit Group(const Words& words) {
    fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
    config.deviceType = words.device == "cuda" ? fcclDeviceCuda : words.device == "host" ? fcclDeviceHost : 0;
    config.allowSharedDevice = words.sharedDevice ? 1 : 0;
    if (!words.output.empty()) config.tuningFile = words.output.c_str();
    comms_.resize(static_cast<size_t>(words.ranks));
    require(fcclCommInitAll(comms_.data(), words.ranks, &config), nullptr);
  }
  ~Group() {
    for (fcclComm_t comm : comms_) fcclCommDestroy(comm);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  Communicator& communicator(int rank) { return testing::communicatorOf(comms_[static_cast<size_t>(rank)]); }

  // Each rank on a thread of its own. A rank that fails ends the program, since the others wait for it.
  void run(const std::function<void(int rank, fcclComm_t comm)>& body) {
    std::vector<std::jthread> threads;
    for (size_t r = 0; r < comms_.size(); r++) {
      threads.emplace_back([&, r] {
        try {
          body(static_cast<int>(r), comms_[r]);
        } catch (const std::exception& error) {
          std::fprintf(stderr, "fccl-tune: rank %zu: %s\n", r, error.what());
          std::_Exit(1);
        }
      });
    }
  }

  void tune(const std::vector<fcclQuery_t>& calls, int budgetMs) {
    run([&](int, fcclComm_t comm) {
      require(fcclCommTune(comm, calls.data(), static_cast<int>(calls.size()), budgetMs), comm);
    });
  }

 private:
  std::vector<fcclComm_t> comms_;
};

std::vector<fcclQuery_t> callsOf(const Words& words, const std::vector<fcclFusionPattern_t>& patterns,
                                 const std::vector<int64_t>& tokens) {
  std::vector<fcclQuery_t> calls;
  for (const fcclFusionPattern_t pattern : patterns) {
    for (const int64_t hidden : words.hidden) {
      for (const int64_t rows : tokens) {
        fcclQuery_t call = FCCL_QUERY_INITIALIZER;
        call.pattern = pattern;
        call.dtype = dtypeOf(words.dtype);
        call.tokens = rows;
        call.hidden = hidden;
        call.inputInWindow = call.outputInWindow = words.windows ? 1 : 0;
        valueOf(queryOf(call));
        calls.push_back(call);
      }
    }
  }
  return calls;
}

std::vector<fcclFusionPattern_t> patternsOf(const Words& words) {
  std::vector<fcclFusionPattern_t> patterns;
  if (words.patterns != std::vector<std::string>{"all"}) {
    for (const std::string& word : words.patterns) patterns.push_back(patternOf(word));
  }
  if (!patterns.empty()) return patterns;
  for (size_t i = 0; i < kPatterns.size(); i++) patterns.push_back(static_cast<fcclFusionPattern_t>(i));
  return patterns;
}

// The tokens, and points between those that are neighbours.
std::vector<int64_t> withPointsBetween(const std::vector<int64_t>& tokens) {
  std::vector<int64_t> all;
  for (size_t i = 0; i < tokens.size(); i++) {
    if (i > 0 && tokens[i] - tokens[i - 1] > 1) all.push_back((tokens[i - 1] + tokens[i]) / 2);
    all.push_back(tokens[i]);
  }
  return all;
}

struct Regret {
  std::vector<RegretRow> rows;
  // HOST: one-way times of a flag between two ranks' cores before, between and after all of it, in nanoseconds. Where a
  // machine changes in it, what was the fastest before is not after.
  std::vector<double> flags;
};

Regret measureRegret(const Words& words, const std::vector<fcclQuery_t>& tuned) {
  constexpr double kMicrosecondsPerCall = 40'000;
  Regret regret;
  std::vector<RegretRow>& rows = regret.rows;
  const auto noteFlag = [&](Group& group) {
    const double flag = group.communicator(0).facts().flagNanoseconds;
    if (flag > 0) regret.flags.push_back(flag);
  };
  for (const fcclQuery_t& call : callsOf(words, patternsOf(words), withPointsBetween(words.tokens))) {
    rows.push_back({.call = call});
  }
  {
    Group before(words);
    noteFlag(before);
    before.tune(tuned, words.budgetMs);
    for (RegretRow& row : rows) {
      row.tunedBefore = chooseStrategy(queryOf(row.call).value(), before.communicator(0).facts()).id;
    }
  }
  Group group(words);
  noteFlag(group);
  group.tune(tuned, words.budgetMs);
  const Facts& facts = group.communicator(0).facts();
  Facts untuned = facts;
  untuned.tuned = nullptr;
  std::vector<fcclQuery_t> calls;
  for (RegretRow& row : rows) {
    row.untuned = chooseStrategy(queryOf(row.call).value(), untuned).id;
    row.tuned = chooseStrategy(queryOf(row.call).value(), facts).id;
    calls.push_back(row.call);
  }
  group.run([&](int rank, fcclComm_t) {
    const auto run = valueOf(TuningRun::begin(group.communicator(rank), calls, std::chrono::hours(24)));
    for (RegretRow& row : rows) {
      const std::optional<TuningPoint> point = valueOf(run->measure(row.call, kMicrosecondsPerCall));
      if (rank != 0 || !point) continue;
      row.times = point->times;
      std::erase_if(row.times, [](const TuningTime& time) { return !isExact(time.strategy); });
    }
  });
  Group after(words);
  noteFlag(after);
  return regret;
}

void run(Words words) {
  if (words.tokens.empty()) {
    for (int64_t tokens = 1; tokens <= 8192; tokens *= 2) words.tokens.push_back(tokens);
  }
  const std::vector<fcclQuery_t> calls = callsOf(words, patternsOf(words), words.tokens);
  // Ranks that are threads must not share a hardware queue. Read when CUDA starts.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  if (words.regret) {
    unsetenv("FCCL_TUNING_FILE");
    words.output.clear();
    if (words.windows) throw std::invalid_argument("--regret and --windows exclude each other.");
    const Regret regret = measureRegret(words, calls);
    std::printf("%s", regretText(regret.rows).c_str());
    if (!regret.flags.empty()) {
      fmt::print("One-way time of a flag before the first tuning, before the second, after all: {:.0f} ns.\n",
                 fmt::join(regret.flags, ", "));
    }
    if (words.json.empty()) return;
    std::ofstream file(words.json);
    file << regretJson(regret.rows).dump(1) << "\n";
    if (!file.flush()) throw std::invalid_argument(fmt::format("--json: {} cannot be written.", words.json));
    return;
  }
  if (words.output.empty() && std::getenv("FCCL_TUNING_FILE") == nullptr) {
    throw std::invalid_argument("Name the tuning file: --output, or FCCL_TUNING_FILE.");
  }
  Group group(words);
  group.tune(calls, words.budgetMs);
  const auto& tuned = group.communicator(0).facts().tuned;
  const std::string& path = group.communicator(0).options().tuningFile;
  // What could not be kept there is the whole of what was asked for.
  const Result<TuningFile> kept = TuningFile::read(path);
  if (!kept.ok()) throw std::runtime_error(kept.status().message());
  if (kept.value().find(group.communicator(0).tuningMachine()) == nullptr) {
    throw std::runtime_error(fmt::format("tuning file {} cannot be written.", path));
  }
  std::printf("%s: %zu points for %s\n", path.c_str(), tuned->points(),
              describe(group.communicator(0).tuningMachine()).c_str());
}

}  // namespace
}  // namespace fccl

int main(int argc, char** argv) {
  fccl::Words words;
  CLI::App app("Measures FCCL's strategies on this machine and keeps what is fastest in a tuning file.");
  app.add_option("--device", words.device, "host, cuda or auto")->check(CLI::IsMember({"auto", "host", "cuda"}));
  app.add_option("--ranks", words.ranks, "ranks, threads of this process")->check(CLI::Range(1, 72));
  app.add_flag("--shared-device", words.sharedDevice, "several ranks may be on one GPU, for tests");
  app.add_option("--pattern", words.patterns, "as residual_rms_norm,all_reduce; all, or not given: all")
      ->delimiter(',');
  app.add_option("--dtype", words.dtype, "as bf16")->capture_default_str();
  app.add_option("--hidden", words.hidden, "columns, as a list")->delimiter(',')->capture_default_str();
  app.add_option("--tokens", words.tokens, "rows, as a list; powers of two to 8192 where not given")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  app.add_flag("--windows", words.windows, "the buffers lie in registered windows");
  app.add_option("--budget", words.budgetMs, "milliseconds that it may take")->check(CLI::Range(1, 86'400'000));
  app.add_option("-o,--output", words.output, "the tuning file; else FCCL_TUNING_FILE");
  app.add_flag("--regret", words.regret,
               "write no file; tune twice, then measure these calls and some between, and print the time of AUTO's "
               "choice over the least as a markdown table");
  app.add_option("--json", words.json, "with --regret: write the times to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    fccl::run(words);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fccl-tune: %s\n", error.what());
    return 1;
  }
}
