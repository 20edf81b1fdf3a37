#include "tests/perf/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

namespace fccl::perf {
namespace {

constexpr int64_t kMost = int64_t{1} << 40;  // elements
constexpr int kMostTimes = 1'000'000;

// The words of the command line that become Options only together.
struct Words {
  std::string device = "host";
  std::string launch = "auto";
  int ranks = 0;
  std::string minBytes;
  std::string maxBytes;
  size_t factor = 4;
  std::vector<int64_t> tokens;
  std::vector<int64_t> hidden;
  std::string pattern = "all_reduce";
  std::string strategy = "auto";
  std::string dtype;
  std::string op = "sum";
  std::string place = "both";
  bool windows = false;
  bool sharded = false;
  std::vector<std::string> compare;
  std::string suite;
  int repeatChanged = -1;
};

void addCases(const Words& words, fcclFusionPattern_t pattern, std::vector<Case>& cases) {
  Case c;
  c.pattern = pattern;
  c.dtype = dtypeOf(!words.dtype.empty() ? words.dtype : c.fused() ? "bf16" : "fp32");
  c.op = opOf(words.op);
  c.strategy = strategyOf(words.strategy);
  c.windows = words.windows;
  c.sharded = words.sharded;
  if (c.sharded) {
    if (!traitsOf(pattern).residual) throw std::invalid_argument("--sharded-residual: the pattern has no residual.");
    if (c.strategy != fcclStrategyAuto && c.strategy != fcclStrategyTwoshot) {
      throw std::invalid_argument("--sharded-residual is for --strategy auto and twoshot.");
    }
    c.strategy = fcclStrategyTwoshot;
  }
  if (c.fused() && c.op != fcclSum) throw std::invalid_argument("--op: fused patterns know only sum.");
  const bool bySize = !words.minBytes.empty() || !words.maxBytes.empty();
  if (!bySize && (c.fused() || !words.tokens.empty() || !words.hidden.empty())) {
    const std::vector<int64_t> tokens = words.tokens.empty() ? std::vector<int64_t>{1, 64, 1024} : words.tokens;
    const std::vector<int64_t> hiddens = words.hidden.empty() ? std::vector<int64_t>{8192} : words.hidden;
    for (const int64_t hidden : hiddens) {
      for (const int64_t rows : tokens) {
        if (rows > kMost / hidden) throw std::invalid_argument("--tokens times --hidden is more than 2^40 elements.");
        c.tokens = rows;
        c.hidden = hidden;
        cases.push_back(c);
      }
    }
    return;
  }
  if (!words.tokens.empty()) throw std::invalid_argument("--tokens and --min-bytes/--max-bytes exclude each other.");
  const size_t low = bytesOfText(words.minBytes.empty() ? "16K" : words.minBytes);
  const size_t high = words.maxBytes.empty() ? std::max<size_t>(low, 16U << 20) : bytesOfText(words.maxBytes);
  if (high < low) throw std::invalid_argument("--max-bytes is smaller than --min-bytes.");
  for (const int64_t hidden : words.hidden.empty() ? std::vector<int64_t>{c.fused() ? 8192 : 1} : words.hidden) {
    for (const int64_t rows : tokensBySize(low, high, words.factor, static_cast<size_t>(hidden) * bytesOf(c.dtype))) {
      c.tokens = c.fused() ? rows : 1;
      c.hidden = c.fused() ? hidden : rows * hidden;
      cases.push_back(c);
    }
  }
}

void interpret(const Words& words, Options& options) {
  if (words.launch == "threads") options.launch = Launch::kThreads;
  if (words.launch == "mpi") options.launch = Launch::kMpi;
  if (words.ranks > 0) options.ranks = words.ranks;
  options.outOfPlace = words.place != "in";
  options.inPlace = words.place != "out";
  const auto compares = [&](const char* peer) {
    return std::find(words.compare.begin(), words.compare.end(), peer) != words.compare.end();
  };
  options.compareMpi = compares("mpi");
  options.compareUnfused = compares("unfused");
  options.onCuda = words.device == "cuda";
  options.cuda.compareUnfused = options.compareUnfused;
  options.cuda.compareNccl = compares("nccl");
  if (options.onCuda && (options.compareMpi || words.suite == "host-goals")) {
    throw std::invalid_argument("--device cuda has no --compare mpi and --suite host-goals.");
  }
  if (!options.onCuda && options.cuda.compareNccl) {
    throw std::invalid_argument("--compare nccl is for --device cuda.");
  }
  options.hostGoals = words.suite == "host-goals";
  options.measure.repeatChanged = words.repeatChanged >= 0 ? words.repeatChanged : options.hostGoals ? 3 : 0;
  if (options.hostGoals) {
    options.compareMpi = true;
    options.inPlace = false;
    options.outOfPlace = true;
    return;
  }
  if (words.pattern == "all") {
    for (const fcclFusionPattern_t pattern : allPatterns()) addCases(words, pattern, options.cases);
  } else {
    addCases(words, patternOf(words.pattern), options.cases);
  }
}

}  // namespace

Options parseOptions(int argc, const char* const* argv) {
  Options options;
  Words words;
  CLI::App app{
      "Times FCCL's all-reduce, plain or fused with what follows it in a transformer layer, in nccl-tests' columns.\n"
      "Ranks are threads of this process, or processes under mpirun (started by hand, or by --launch mpi)."};
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.add_option("--device", words.device, "host or cuda")->check(CLI::IsMember({"host", "cuda"}));
  app.add_option("-n,--ranks", words.ranks, "Number of ranks (default: mpirun's, else 2)")->check(CLI::Range(1, 4096));
  app.add_option("--launch", words.launch,
                 "threads, mpi (run itself under mpirun), or auto: mpi where a comparison with MPI is asked for")
      ->check(CLI::IsMember({"auto", "threads", "mpi"}));
  app.add_flag("--pin", options.pin, "Bind each rank to a core of its own");

  app.add_option("-b,--min-bytes", words.minBytes, "Smallest message, with K, M or G (default 16K)");
  app.add_option("-e,--max-bytes", words.maxBytes, "Largest message (default 16M)");
  app.add_option("-f,--step-factor", words.factor, "Factor from one message size to the next (default 4)")
      ->check(CLI::Range(size_t{2}, size_t{1} << 30));
  app.add_option("--tokens", words.tokens, "Rows, as a list: 1,64,1024")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, kMost));
  app.add_option("--hidden", words.hidden, "Columns, as a list (default 8192)")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, kMost));

  app.add_option("-p,--pattern", words.pattern, "Fusion pattern, or all (default all_reduce)");
  app.add_option("--strategy", words.strategy,
                 "auto, oneshot, twoshot, min_latency, ub, lowprecision, nccl or nccl_symmetric");
  app.add_option("-d,--dtype", words.dtype, "Data type (default float; bfloat16 for fused patterns)");
  app.add_option("-o,--op", words.op, "sum, prod, min, max or avg");
  app.add_option("--place", words.place, "out (of place), in, or both")->check(CLI::IsMember({"out", "in", "both"}));
  app.add_flag("--windows", words.windows, "FCCL's buffers are registered windows (user buffers)");

  app.add_flag("--sharded-residual", words.sharded, "Each rank has the residual of its own tokens only (TWOSHOT)");

  app.add_option("--graph", options.cuda.calls, "CUDA: calls in a graph (default 20)")->check(CLI::Range(1, 10'000));
  app.add_option("--sets", options.cuda.sets, "CUDA: sets of buffers that calls alternate between (default 2)")
      ->check(CLI::Range(1, 16));
  app.add_option("--iters", options.measure.iters, "Calls per round; 0 (default): what fills 10 ms")
      ->check(CLI::Range(0, kMostTimes));
  app.add_option("-w,--warmup", options.measure.warmup, "Calls before timing (default 5)")
      ->check(CLI::Range(0, kMostTimes));
  app.add_option("--rounds", options.measure.rounds, "Rounds; the median over them is shown (default 15)")
      ->check(CLI::Range(1, kMostTimes));
  app.add_option("--repeat-changed", words.repeatChanged,
                 "Measure a case again, up to so many times, where the machine's state changed under it (default 0; 3 "
                 "in a suite)")
      ->check(CLI::Range(0, kMostTimes));
  app.add_flag("--check", options.measure.check, "Compare every element with a float64 reference");
  app.add_option("--compare", words.compare,
                 "mpi, unfused (all-reduce, then a separate epilogue), nccl or none; repeatable")
      ->delimiter(',')
      ->check(CLI::IsMember({"mpi", "unfused", "nccl", "none"}));
  app.add_option("--suite", words.suite, "host-goals: the project's speed goals for 2, 4 or 8 ranks")
      ->check(CLI::IsMember({"host-goals"}));
  app.add_option("--json", options.jsonFile, "Write all results to this file");

  try {
    app.parse(argc, argv);
    interpret(words, options);
  } catch (const CLI::ParseError& error) {
    std::ostringstream out;
    std::ostringstream err;
    const int status = app.exit(error, out, err);
    throw EarlyExit(status == 0 ? 0 : 2, out.str() + err.str());
  } catch (const std::invalid_argument& error) {
    throw EarlyExit(2, std::string(error.what()) + "\n");
  }
  return options;
}

}  // namespace fccl::perf
