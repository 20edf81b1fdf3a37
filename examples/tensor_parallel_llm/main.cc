// Writes text with a small trained model, tensor-parallel over FCCL.
//   tensor_parallel_llm --prompt "And it came to pass" --ranks 4
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>

#include "common/mpi_program.h"
#include "common/timing.h"
#include "tensor_parallel_llm/decoder.h"
#include "tensor_parallel_llm/golden_check.h"

namespace {

struct Options {
  std::string model = DEFAULT_MODEL_DIRECTORY;
  std::string prompt = "In the beginning ";
  int tokens = 160;
  int ranks = 4;
  bool fused = true;
  std::string dtype;   // empty: bf16 to write, both to check
  std::string golden;  // empty: write
};

template <class T>
void writeText(Decoder<T>& decoder, const Options& options, bool visible) {
  std::string text = options.prompt;
  if (visible) std::printf("\n%s", text.c_str());
  const double start = nowUs();
  for (int token = 0; token < options.tokens; ++token) {
    const auto logits = decoder.next(text);
    // Every rank has the same logits to the bit, so all choose the same byte without asking each other.
    text.push_back(static_cast<char>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    if (!visible) continue;
    std::putchar(text.back());
    std::fflush(stdout);
  }
  const double totalUs = nowUs() - start;
  if (!visible || options.tokens == 0) return;
  std::printf(
      "\n\n%d tokens in %.3f s, %.0f tokens/s; %.1f %% of the time in FCCL calls (waiting for slower ranks included)\n",
      options.tokens, totalUs / 1e6, options.tokens / totalUs * 1e6, 100 * decoder.communicationUs() / totalUs);
}

// Returns false where a check fails.
template <class T>
bool runWith(const ModelShard& shard, const Options& options, const char* dtype, int rank) {
  // What can be wrong in a file is found before the communicator is there, while a rank can still leave by itself.
  const auto golden = options.golden.empty() ? std::vector<GoldenCase>() : loadGolden(options.golden, shard.config);
  const Communicator comm;
  Decoder<T> decoder(shard, comm, options.fused);
  if (rank == 0) {
    std::printf("%d rank%s, %s activations, %s\n", shard.ranks, shard.ranks == 1 ? "" : "s", dtype,
                options.fused ? "fused: all-reduce, residual add and RMSNorm in one call"
                              : "unfused: fcclAllReduce, then residual add and RMSNorm as loops");
  }
  if (golden.empty()) {
    writeText(decoder, options, rank == 0);
    return true;
  }
  std::unique_ptr<ModelShard> whole;
  if (rank == 0) whole = std::make_unique<ModelShard>(loadShard(options.model, 0, 1));
  const bool holds = checkGolden(decoder, whole.get(), golden);
  if (rank == 0) {
    std::printf("%s\n", holds ? "text and logits verified against golden text and float64, the same bits on all ranks"
                              : "VERIFICATION FAILED");
  }
  return holds;
}

bool run(const Options& options, const MpiSession& mpi) {
  const ModelShard shard = loadShard(options.model, mpi.rank(), mpi.ranks());
  const bool byte = std::all_of(options.prompt.begin(), options.prompt.end(),
                                [&](char c) { return static_cast<unsigned char>(c) < shard.config.vocab; });
  if (options.prompt.empty() || !byte) {
    throw std::runtime_error("--prompt needs one byte or more, each below " + std::to_string(shard.config.vocab) +
                             ", the model's vocabulary (ASCII)");
  }
  const bool both = options.dtype.empty() && !options.golden.empty();
  bool holds = true;
  if (options.dtype != "fp32") holds = runWith<Bf16>(shard, options, "bf16", mpi.rank());
  if (options.dtype == "fp32" || both) holds = runWith<float>(shard, options, "fp32", mpi.rank()) && holds;
  return holds;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Writes text with a byte-level Llama model, tensor-parallel over FCCL. Starts itself under mpirun.");
  app.add_option("--prompt", options.prompt, "text to continue")->capture_default_str();
  app.add_option("--tokens", options.tokens, "bytes to write")->capture_default_str()->check(CLI::Range(0, 1000000));
  app.add_option("--ranks", options.ranks, "ranks to start; under an mpirun of yours its -np decides")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_flag("--fused,!--unfused", options.fused,
               "all-reduce, residual add and norm in one call (default), or one by one");
  app.add_option("--model", options.model, "directory of config.json and model.safetensors")->capture_default_str();
  app.add_option("--dtype", options.dtype, "what the ranks exchange: bf16 or fp32 (default: bf16; with --check both)")
      ->check(CLI::IsMember({"bf16", "fp32"}));
  app.add_option("--check", options.golden, "golden.json: compare text and logits instead of writing text");
  CLI11_PARSE(app, argc, argv);
  return runProgram(options.ranks, argv, [&](const MpiSession& mpi) { return run(options, mpi); });
}
