// fccl-perf: times FCCL against MPI and against an all-reduce with a separate epilogue. `fccl-perf --help` lists the
// options; docs/performance.md says how to read the figures.
#include <fmt/format.h>

#include <cstdio>
#include <ctime>
#include <exception>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

#include "lib/validate.h"
#include "tests/perf/chosen.h"
#include "tests/perf/machine.h"
#include "tests/perf/options.h"
#include "tests/perf/peers_mpi.h"
#include "tests/perf/ranks.h"
#include "tests/perf/report.h"
#include "tests/perf/suite.h"

#ifndef FCCL_GIT_DESCRIBE
#define FCCL_GIT_DESCRIBE "unknown"
#endif

namespace fccl::perf {
namespace {

std::string utcNow() {
  const std::time_t now = std::time(nullptr);
  std::tm broken{};
  gmtime_r(&now, &broken);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &broken);
  return text;
}

RunFacts factsOf(const Ranks& ranks, const Options& options, int argc, const char* const* argv) {
  int version = 0;
  require(fcclGetVersion(&version), "fcclGetVersion", nullptr);
  RunFacts facts;
  facts.command = commandText(argc, argv);
  facts.date = utcNow();
  facts.git = FCCL_GIT_DESCRIBE;
  facts.fcclVersion = fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  facts.mpiVersion = startedByMpirun() ? mpiVersion() : "";
  facts.compiler = fmt::format("g++ {}", __VERSION__);
  facts.epilogueIsa = epilogueLoops().isa;
  facts.launch = ranks.kind();
  facts.ranks = ranks.count();
  facts.pinned = options.pin;
  facts.measure = options.measure;
  facts.machine = describeMachine();
  return facts;
}

Variants variantsOf(const Case& c, const std::vector<bool>& places, const Options& options, const Ranks& ranks,
                    fcclComm_t comm) {
  Variants variants;
  for (const bool inPlace : places) {
    variants.push_back(makeFccl(c, inPlace, ranks.rank(), comm));
    if (options.compareUnfused && c.fused()) variants.push_back(makeUnfused(c, inPlace, ranks.rank(), comm));
    if ((options.compareUnfused || options.compareMpi) && c.fused()) {
      variants.push_back(makeEpilogueAlone(c, inPlace, ranks.rank()));
    }
    if (options.compareMpi) addMpiPeers(c, inPlace, ranks.rank(), ranks.count(), variants);
  }
  return variants;
}

// The file of --json, opened before anything is measured: a wrong path shall not cost a run.
class JsonFile {
 public:
  explicit JsonFile(const std::string& path) : path_(path), file_(path) { requireGood(); }
  void write(const nlohmann::json& json) {
    file_ << json.dump(1) << "\n";
    file_.close();
    requireGood();
  }

 private:
  void requireGood() const {
    if (!file_) throw std::runtime_error(fmt::format("--json: '{}' cannot be written", path_));
  }

  const std::string path_;
  std::ofstream file_;
};

// A communicator of this rank, given back at the end.
class Communicator {
 public:
  Communicator(Ranks& ranks, fcclStrategy_t strategy) {
    fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
    config.deviceType = fcclDeviceHost;
    if (strategy != fcclStrategyAuto) config.strategy = strategy;
    comm_ = ranks.createCommunicator(config);
  }
  ~Communicator() { fcclCommDestroy(comm_); }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  fcclComm_t get() const { return comm_; }

 private:
  fcclComm_t comm_ = nullptr;
};

std::vector<bool> placesOf(const Options& options) {
  if (options.onCuda) return {false};  // all that CudaPerf measures
  std::vector<bool> places;
  if (options.outOfPlace) places.push_back(false);
  if (options.inPlace) places.push_back(true);
  return places;
}

// Names the strategies of FCCL's own series. Afterwards: the first call may have tuned what AUTO takes (FCCL_AUTOTUNE).
void nameChosen(fcclComm_t comm, Row& row) {
  Case sum = row.c;  // what is timed before a separate epilogue
  sum.pattern = fcclPatternAllReduce;
  for (Series& series : row.series) {
    if (series.variant == "fccl") series.chosen = choiceOf(row.c, series.inPlace, comm).strategy;
    if (series.variant == "unfused") series.chosen = choiceOf(sum, series.inPlace, comm).strategy;
  }
}

// What every rank does; rank 0 prints. Returns whether there are results, none of them with a wrong element.
bool runRank(Ranks& ranks, const Options& options, int argc, const char* const* argv) {
  RunFacts facts = factsOf(ranks, options, argc, argv);
  if (options.pin) pinToCore(ranks.rank());
  const std::vector<Goal> goals = options.hostGoals ? hostGoals(ranks.count()) : std::vector<Goal>{};
  const std::vector<Case> cases = options.hostGoals ? casesOf(goals) : options.cases;
  const bool prints = ranks.rank() == 0;
  std::optional<JsonFile> jsonFile;
  if (prints && !options.jsonFile.empty()) jsonFile.emplace(options.jsonFile);

  std::unique_ptr<CudaPerf> cuda;
  std::optional<Communicator> host;
  if (options.onCuda) {
    CudaOptions cudaOptions = options.cuda;
    cudaOptions.strategy = cases.front().strategy;
    cuda = makeCudaPerf(ranks, cudaOptions);
    facts.gpus = cuda->hardware();
    facts.nccl = cuda->nccl();
    facts.graphCalls = cudaOptions.calls;
    facts.sets = cudaOptions.sets;
  } else {
    host.emplace(ranks, cases.front().strategy);
  }
  if (prints) fmt::print("{}", headText(facts));
  const fcclComm_t comm = cuda != nullptr ? cuda->communicator() : host->get();
  const auto measure = [&](const Case& c, const std::vector<bool>& places) {
    if (cuda != nullptr) return cuda->measure(c, options.measure);
    Variants variants = variantsOf(c, places, options, ranks, comm);
    return measureCase(ranks, c, variants, options.measure);
  };

  std::vector<Row> rows;
  std::optional<fcclFusionPattern_t> pattern;
  for (const Case& c : cases) {
    if (prints && pattern != c.pattern) fmt::print("# {}, strategy {}\n", nameOf(c.pattern), nameOf(c.strategy));
    pattern = c.pattern;
    const Choices choices = choicesOf(c, placesOf(options), comm);
    if (prints) fmt::print("{}", choices.refusals);
    if (choices.served.empty()) continue;
    rows.push_back(measure(c, choices.served));
    nameChosen(comm, rows.back());
    if (prints) fmt::print("{}", rowText(rows.back(), ranks.count()));
    if (prints) std::fflush(stdout);
  }

  if (prints) {
    if (rows.empty()) {
      fmt::print(stderr, "fccl-perf: {} can serve no case that was asked for; the comment lines say why.\n",
                 strategyName(cases.front().strategy));
    } else {
      fmt::print("{}", footText(rows, ranks.count()));
    }
    if (options.hostGoals) fmt::print("{}", goalsText(goals, rows));
    std::fflush(stdout);
    if (jsonFile) {
      nlohmann::json json = jsonOf(facts);
      json["rows"] = nlohmann::json::array();
      for (const Row& row : rows) json["rows"].push_back(jsonOf(row, ranks.count()));
      if (options.hostGoals) json["goals"] = goalsJson(goals, rows);
      jsonFile->write(json);
    }
  }
  return !rows.empty() && totalWrong(rows) == 0;
}

int runProgram(int argc, char** argv) {
  Options options;
  try {
    options = parseOptions(argc, argv);
  } catch (const EarlyExit& exit) {
    fmt::print(exit.status == 0 ? stdout : stderr, "{}", exit.what());
    return exit.status;
  }
  if (options.hostGoals && options.ranks) hostGoals(*options.ranks);  // refuses other numbers before any rank starts
  const bool underMpirun = startedByMpirun() && options.launch != Launch::kThreads;
  if (!underMpirun && options.compareMpi && options.launch == Launch::kThreads) {
    throw std::runtime_error("--compare mpi needs ranks that are processes; use --launch mpi, or leave --launch out");
  }
  const bool wantsMpi = options.launch == Launch::kMpi || options.compareMpi;
  if (wantsMpi && !haveMpi()) {
    throw std::runtime_error("this build has no MPI: install libopenmpi-dev, configure and build again");
  }
  if (wantsMpi && !underMpirun) executeUnderMpirun(options.ranks.value_or(2), argv);

  // Written by rank 0 alone where ranks are threads; every rank finds the same.
  bool good = false;
  const auto body = [&](Ranks& ranks) {
    if (options.ranks.value_or(ranks.count()) != ranks.count()) {
      throw std::runtime_error(fmt::format("--ranks is {}, but mpirun has started {}", *options.ranks, ranks.count()));
    }
    const bool found = runRank(ranks, options, argc, argv);
    if (ranks.rank() == 0 || underMpirun) good = found;
  };
  if (underMpirun) {
    runAsMpiRank(body);
  } else {
    runAsThreads(options.ranks.value_or(2), body);
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace fccl::perf

int main(int argc, char** argv) {
  try {
    return fccl::perf::runProgram(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "fccl-perf: {}\n", error.what());
    return 1;
  }
}
