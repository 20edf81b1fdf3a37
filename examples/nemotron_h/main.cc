// The all-reduces of one Nemotron-H decode step, fused with what follows each, against the same as separate passes.
//   nemotron_h --ranks-per-node 4 --tokens 8
// The work between the all-reduces (GEMMs, scans, attention, experts) is not simulated: each rank's partial sums are
// generated, with the statistics of a row-parallel GEMM, outside of what is timed.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

#include "common/mpi_program.h"
#include "common/progress.h"
#include "common/timing.h"
#include "nemotron_h/data.h"
#include "nemotron_h/layout.h"
#include "nemotron_h/passes.h"
#include "nemotron_h/verify.h"

namespace {

struct Options {
  int layers = 108;
  int64_t tokens = 8;
  int64_t hidden = 8192;
  int ranksPerNode = 4;
  std::string strategy = "auto";
  bool fusedOnly = false;
  bool unfusedOnly = false;
  int iters = 20;
  uint32_t seed = 1;
  int corruptCall = -1;
};

const std::map<std::string, fcclStrategy_t> kStrategies = {{"auto", fcclStrategyAuto},
                                                           {"oneshot", fcclStrategyOneshot},
                                                           {"twoshot", fcclStrategyTwoshot},
                                                           {"min_latency", fcclStrategyMinLatency}};

// The buffers of one call. In the model `input` is where a GEMM has written, and the others are what later GEMMs read.
struct CallBuffers {
  std::vector<Bf16> input, residualOut, norm;
  std::vector<uint8_t> quant, scales;
};

// Times in microseconds, [step][call].
using StepTimes = std::vector<std::vector<double>>;

class DecodeStep {
 public:
  DecodeStep(const Options& options, const MpiSession& mpi, fcclComm_t comm, Progress& progress)
      : options_(options),
        mpi_(mpi),
        comm_(comm),
        progress_(progress),
        weight_(static_cast<size_t>(options.hidden)),
        embedding_(elements()),
        reduced_(elements()) {
    CHECK_FCCL(comm_, fcclQuantScaleBytes(options.tokens, options.hidden, fcclPatternResidualRmsNormQuantNvfp4,
                                          fcclScaleSwizzled128x4, &scaleBytes_));
    fillNormWeights(weight_.data(), options.hidden, streamKey(options.seed, 0, 0, kWeightStream));
    fillNormal(embedding_.data(), static_cast<int64_t>(elements()), streamKey(options.seed, 0, 0, kEmbeddingStream));

    // Calls run back to back, as many at a time as the buffers of one rank may take; the full size at few tokens fits
    // whole.
    constexpr size_t kMostBytes = size_t{256} << 20;
    const size_t bytesPerCall = elements() * (3 * sizeof(Bf16) + 1) + scaleBytes_;
    calls_.resize(std::clamp<size_t>(kMostBytes / bytesPerCall, 1, static_cast<size_t>(options.layers)));
    for (CallBuffers& buffers : calls_) {
      for (auto* rows : {&buffers.input, &buffers.residualOut, &buffers.norm}) rows->resize(elements());
      buffers.quant.resize(elements() / 2);
      buffers.scales.resize(scaleBytes_);
    }
    shown_ = calls_[0];
  }

  // One step, timed call by call and verified. Returns false on every rank where any rank has found a wrong value.
  bool run(int step, bool fused, std::vector<double>& times) {
    residualIn_ = embedding_;
    times.assign(static_cast<size_t>(options_.layers), 0);
    for (int first = 0; first < options_.layers; first += static_cast<int>(calls_.size())) {
      const int count = std::min(static_cast<int>(calls_.size()), options_.layers - first);
      for (int i = 0; i < count; ++i) {
        fillPartialSums(calls_[i].input.data(), 0, static_cast<int64_t>(elements()),
                        partialKey(step, first + i, mpi_.rank()), mpi_.ranks());
      }
      MPI_Barrier(MPI_COMM_WORLD);
      for (int i = 0; i < count; ++i) {
        const double start = nowUs();
        if (fused) {
          runFused(patternAt(first + i), residualOf(i), calls_[i]);
        } else {
          runUnfused(patternAt(first + i), residualOf(i), calls_[i]);
        }
        times[first + i] = nowUs() - start;
      }
      if (!verify(step, first, count, fused)) return false;
      residualIn_.swap(calls_[count - 1].residualOut);
    }
    return true;
  }

 private:
  static constexpr uint32_t kWeightStream = 1u << 20;  // beyond any rank
  static constexpr uint32_t kEmbeddingStream = kWeightStream + 1;

  size_t elements() const { return static_cast<size_t>(options_.tokens * options_.hidden); }
  fcclFusionPattern_t patternAt(int call) const { return patternOf(ownerOfNorm(call, options_.layers)); }
  uint32_t partialKey(int step, int call, int rank) const {
    return streamKey(options_.seed, static_cast<uint32_t>(step) + 1, static_cast<uint32_t>(call),
                     static_cast<uint32_t>(rank));
  }
  const Bf16* residualOf(int i) const { return i == 0 ? residualIn_.data() : calls_[i - 1].residualOut.data(); }

  void runFused(fcclFusionPattern_t pattern, const Bf16* residual, CallBuffers& buffers) {
    fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
    args.pattern = pattern;
    args.dtype = fcclBfloat16;
    args.tokens = options_.tokens;
    args.hidden = options_.hidden;
    args.input = buffers.input.data();
    args.residual = residual;
    args.residualOut = buffers.residualOut.data();
    args.weight = weight_.data();
    args.eps = kEps;
    if (writesNorm(pattern)) args.normOut = buffers.norm.data();
    if (writesQuant(pattern)) {
      args.quantOut = buffers.quant.data();
      args.scaleOut = buffers.scales.data();
      args.nvfp4GlobalScale = &kNvfp4GlobalScale;
    }
    CHECK_FCCL(comm_, fcclAllReduceFused(&args, comm_, nullptr));
  }

  void runUnfused(fcclFusionPattern_t pattern, const Bf16* residual, CallBuffers& buffers) {
    CHECK_FCCL(comm_,
               fcclAllReduce(buffers.input.data(), reduced_.data(), elements(), fcclBfloat16, fcclSum, comm_, nullptr));
    addPass(reduced_.data(), residual, buffers.residualOut.data(), static_cast<int64_t>(elements()));
    normPass(buffers.residualOut.data(), weight_.data(), kEps, buffers.norm.data(), options_.tokens, options_.hidden);
    if (writesQuant(pattern)) {
      quantPass(buffers.norm.data(), kNvfp4GlobalScale, buffers.quant.data(), buffers.scales.data(), scaleBytes_,
                options_.tokens, options_.hidden);
    }
  }

  // What call i has quantized. A fused pattern may keep its norm to itself; FCCL promises the same bytes for the
  // pattern that writes it, so that one, outside of what is timed, shows from what the codes must follow.
  const Bf16* normOf(int i, fcclFusionPattern_t pattern, bool fused) {
    if (!fused || writesNorm(pattern)) return calls_[i].norm.data();
    shown_.input = calls_[i].input;
    runFused(fcclPatternResidualRmsNormOutQuantNvfp4, residualOf(i), shown_);
    return shown_.norm.data();
  }

  bool verify(int step, int first, int count, bool fused) {
    int holds = 1;
    for (int i = 0; i < count; ++i) {
      const int call = first + i;
      const fcclFusionPattern_t pattern = patternAt(call);
      CallBuffers& buffers = calls_[i];
      if (call == options_.corruptCall && mpi_.rank() == mpi_.ranks() - 1) {
        buffers.residualOut[elements() / 2] = Bf16(-1.5f);
      }
      std::vector<uint32_t> keys;
      keys.reserve(static_cast<size_t>(mpi_.ranks()));
      for (int rank = 0; rank < mpi_.ranks(); ++rank) keys.push_back(partialKey(step, call, rank));
      const Bf16* norm = normOf(i, pattern, fused);
      const uint8_t* quant = writesQuant(pattern) ? buffers.quant.data() : nullptr;
      const auto mismatch = findMismatch({options_.tokens, options_.hidden, &keys, residualOf(i), weight_.data(),
                                          buffers.residualOut.data(), norm, quant, buffers.scales.data(), scaleBytes_});
      if (mismatch && holds == 1) {
        std::fprintf(stderr, "\nrank %d, %s, %s, %s: %s\n", mpi_.rank(), fused ? "fused" : "unfused",
                     normName(call, options_.layers).c_str(), patternName(pattern), mismatch->c_str());
        holds = 0;
      }
      // Sums, residuals and codes are exact. A norm has some room, but the ranks must have the same.
      if (!sameOnAllRanks(norm, elements() * sizeof(Bf16))) {
        if (mpi_.rank() == 0) {
          std::fprintf(stderr, "\n%s: the ranks have different norms\n", normName(call, options_.layers).c_str());
        }
        holds = 0;
      }
      progress_.advance(std::string(fused ? "fused, " : "unfused, ") + normName(call, options_.layers));
    }
    int holdsEverywhere = 0;
    MPI_Allreduce(&holds, &holdsEverywhere, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return holdsEverywhere == 1;
  }

  const Options& options_;
  const MpiSession& mpi_;
  fcclComm_t comm_;
  Progress& progress_;
  size_t scaleBytes_ = 0;
  std::vector<Bf16> weight_;      // one for all layers: its values matter, not whose they are
  std::vector<Bf16> embedding_;   // the residual stream before layer 0
  std::vector<Bf16> residualIn_;  // what the first of calls_ adds to
  std::vector<Bf16> reduced_;
  std::vector<CallBuffers> calls_;
  CallBuffers shown_;
};

// Bytes that the passes of one call load and store on a rank, every tensor counted once each time a pass reads or
// writes it, whatever cache it comes from. The exchange between the ranks is the same on both sides and left out. Per
// element, bf16:
//   fused    input 2 + residual 2 + residualOut 2 + normOut 2 (where written) + quantOut 1/2, and scaleOut
//   unfused  all-reduce 2 + 2; add 2 + 2 + 2; norm 2 + 2; quantization 2 + 1/2, and scaleOut
double trafficBytes(fcclFusionPattern_t pattern, bool fused, const Options& options) {
  const double elements = static_cast<double>(options.tokens) * static_cast<double>(options.hidden);
  size_t scaleBytes = 0;
  CHECK_FCCL(nullptr,
             fcclQuantScaleBytes(options.tokens, options.hidden, pattern, fcclScaleSwizzled128x4, &scaleBytes));
  double perElement = fused ? 6 + (writesNorm(pattern) ? 2 : 0) : 14;
  if (writesQuant(pattern)) perElement += fused ? 0.5 : 2.5;
  return perElement * elements + static_cast<double>(scaleBytes);
}

// What the communicator takes for these calls, as fcclExplain marks it. Unfused: for the plain all-reduce.
std::string strategyTaken(fcclComm_t comm, fcclFusionPattern_t pattern, bool fused, const Options& options) {
  fcclQuery_t query = FCCL_QUERY_INITIALIZER;
  query.pattern = fused ? pattern : fcclPatternAllReduce;
  query.tokens = options.tokens;
  query.hidden = options.hidden;
  std::string text(size_t{64} << 10, '\0');
  CHECK_FCCL(comm, fcclExplain(comm, &query, text.data(), text.size()));
  const size_t mark = text.find("-> ");
  if (mark == std::string::npos) return "?";
  return text.substr(mark + 3, text.find('\n', mark) - mark - 3);
}

void printTable(const Options& options, fcclComm_t comm, bool fused, const StepTimes& steps) {
  const char* title =
      fused ? "fused: one call" : "unfused: all-reduce, residual add, norm, quantization as separate passes";
  std::printf("\n%s\n  %-34s %-12s %7s %12s %10s %10s %10s\n", title, "pattern", "strategy", "count", "total us",
              "min us", "median us", "p99 us");
  for (const fcclFusionPattern_t pattern : kPatterns) {
    std::vector<double> samples;
    double total = 0;
    for (const auto& times : steps) {
      for (int call = 0; call < options.layers; ++call) {
        if (patternOf(ownerOfNorm(call, options.layers)) != pattern) continue;
        samples.push_back(times[call]);
        total += times[call];
      }
    }
    if (samples.empty()) continue;
    std::printf("  %-34s %-12s %7zu %12.0f %10.1f %10.1f %10.1f\n", patternName(pattern),
                strategyTaken(comm, pattern, fused, options).c_str(), samples.size(), total, percentile(samples, 0),
                percentile(samples, 0.5), percentile(samples, 0.99));
  }
}

// A call takes as long as on the slowest rank, and so does a step.
double medianStepUs(const StepTimes& own) {
  std::vector<double> totals;
  for (const auto& times : own) {
    double mine = 0;
    for (const double time : times) mine += time;
    double slowest = 0;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    totals.push_back(slowest);
  }
  return percentile(totals, 0.5);
}

StepTimes slowestRank(const StepTimes& own) {
  StepTimes slowest = own;
  for (auto& times : slowest) {
    MPI_Allreduce(MPI_IN_PLACE, times.data(), static_cast<int>(times.size()), MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  }
  return slowest;
}

void printSetting(const Options& options, const MpiSession& mpi) {
  std::map<LayerKind, int> kinds;
  for (int layer = 0; layer < options.layers; ++layer) ++kinds[layerKind(layer)];
  std::printf(
      "Nemotron-H decode step: %d layers (%d Mamba, %d MoE, %d Transformer; order %s, repeated), hidden %lld, bf16, "
      "%lld tokens, %d ranks\n",
      options.layers, kinds[LayerKind::kMamba], kinds[LayerKind::kMoe], kinds[LayerKind::kTransformer],
      std::string(kLayerGroup).c_str(), static_cast<long long>(options.hidden), static_cast<long long>(options.tokens),
      mpi.ranks());
  std::printf(
      "Each all-reduce takes the pre-norm of the next layer along, the last one the final norm. The layers' own work "
      "is not "
      "simulated.\n");
  std::fflush(stdout);
}

void printSaving(const Options& options, double fusedUs, double unfusedUs) {
  double fusedBytes = 0;
  double unfusedBytes = 0;
  for (int call = 0; call < options.layers; ++call) {
    fusedBytes += trafficBytes(patternOf(ownerOfNorm(call, options.layers)), true, options);
    unfusedBytes += trafficBytes(patternOf(ownerOfNorm(call, options.layers)), false, options);
  }
  std::printf("\none decode step (median of %d): fused %.0f us, unfused %.0f us: fusion saves %.0f us, %.0f %%\n",
              options.iters, fusedUs, unfusedUs, unfusedUs - fusedUs, 100 * (1 - fusedUs / unfusedUs));
  std::printf(
      "bytes loaded and stored per rank and step, the exchange itself left out: fused %.1f MB, unfused %.1f MB: fusion "
      "saves %.1f MB, %.0f %%\n",
      fusedBytes / 1e6, unfusedBytes / 1e6, (unfusedBytes - fusedBytes) / 1e6, 100 * (1 - fusedBytes / unfusedBytes));
}

bool run(const Options& options, const MpiSession& mpi) {
  fcclConfig_t config = FCCL_CONFIG_INITIALIZER;
  config.deviceType = fcclDeviceHost;
  config.strategy = kStrategies.at(options.strategy);  // for the plain all-reduce and the fused one alike
  const Communicator comm(&config);
  if (mpi.rank() == 0) printSetting(options, mpi);

  const bool both = options.fusedOnly == options.unfusedOnly;
  std::vector<bool> forms;
  if (both || options.fusedOnly) forms.push_back(true);
  if (both || options.unfusedOnly) forms.push_back(false);

  Progress progress(static_cast<int64_t>(forms.size()) * (options.iters + 1) * options.layers, mpi.rank() == 0);
  DecodeStep step(options, mpi, comm, progress);
  std::map<bool, StepTimes> times;
  std::vector<double> calls;
  // Step 0 warms up; the forms take turns, so that whatever else the machine does meets both.
  for (int index = 0; index <= options.iters; ++index) {
    for (const bool fused : forms) {
      // Each form has data of its own, so that one cannot pass with what the other has left in the buffers.
      if (!step.run(2 * index + (fused ? 1 : 0), fused, calls)) {
        if (mpi.rank() == 0) std::printf("VERIFICATION FAILED\n");
        return false;
      }
      if (index > 0) times[fused].push_back(calls);
    }
  }
  std::map<bool, double> stepUs;
  for (const bool fused : forms) {
    const StepTimes slowest = slowestRank(times[fused]);
    stepUs[fused] = medianStepUs(times[fused]);
    if (mpi.rank() != 0) continue;
    printTable(options, comm, fused, slowest);
  }
  if (mpi.rank() != 0) return true;
  if (both) printSaving(options, stepUs[true], stepUs[false]);
  std::printf("verified against float64 on all ranks: every value of every call of %d steps\n",
              (options.iters + 1) * static_cast<int>(forms.size()));
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("The all-reduces of a Nemotron-H decode step, fused and unfused. Starts itself under mpirun.");
  app.option_defaults()->always_capture_default();
  app.add_option("--layers", options.layers, "layers of the model, and so all-reduces of a step")
      ->check(CLI::Range(1, 100000));
  app.add_option("--tokens", options.tokens, "rows: sequences that are decoded together")->check(CLI::Range(1, 65536));
  app.add_option("--hidden", options.hidden, "columns, a multiple of 16")->check(CLI::Range(16, 65536));
  app.add_option("--ranks-per-node", options.ranksPerNode, "ranks to start; under an mpirun of yours its -np decides")
      ->check(CLI::Range(1, 1024));
  app.add_option("--strategy", options.strategy, "of all calls")->check(CLI::IsMember(kStrategies));
  app.add_flag("--fused", options.fusedOnly, "only the fused calls (default: both in turn)");
  app.add_flag("--unfused", options.unfusedOnly, "only the separate passes");
  app.add_option("--iters", options.iters, "timed steps, after one to warm up")->check(CLI::Range(1, 100000));
  app.add_option("--seed", options.seed, "of all data");
  app.add_option("--corrupt", options.corruptCall,
                 "change one value of this call's output, to see the verification find it");
  CLI11_PARSE(app, argc, argv);
  // The generator numbers elements with 32 bits.
  if (options.hidden % 16 != 0 || options.tokens * options.hidden > int64_t{1} << 30) {
    std::fprintf(stderr, "--hidden %lld: a multiple of 16 is needed (NVFP4 blocks), and tokens * hidden up to 2^30\n",
                 static_cast<long long>(options.hidden));
    return 1;
  }
  // Layer 0 has no call before it, and a final one follows the last.
  if (options.corruptCall >= options.layers) {
    std::fprintf(stderr, "--corrupt %d: there is no such call; they are numbered 0 to %d\n", options.corruptCall,
                 static_cast<int>(options.layers) - 1);
    return 1;
  }
  return runProgram(options.ranksPerNode, argv, [&](const MpiSession& mpi) { return run(options, mpi); });
}
