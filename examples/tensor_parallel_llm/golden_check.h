// Compares the parallel forward pass with golden text and with the float64 reference.
#ifndef EXAMPLES_TENSOR_PARALLEL_LLM_GOLDEN_CHECK_H_
#define EXAMPLES_TENSOR_PARALLEL_LLM_GOLDEN_CHECK_H_

#include <filesystem>
#include <string>
#include <vector>

#include "tensor_parallel_llm/decoder.h"

struct GoldenCase {
  std::string prompt;
  std::string text;             // the prompt and its greedy continuation by a float64 forward pass
  std::vector<double> margins;  // per step of the continuation, best logit less second best
};

// std::runtime_error where the file is not an array of such cases, each of which fits in the context of `config`.
std::vector<GoldenCase> loadGolden(const std::filesystem::path& path, const ModelConfig& config);

// Collective over MPI_COMM_WORLD. Prints one line per case on rank 0 and returns, on every rank, whether all hold.
// `whole` is the whole model on rank 0 and may be null elsewhere.
template <class T>
bool checkGolden(Decoder<T>& decoder, const ModelShard* whole, const std::vector<GoldenCase>& cases);

#endif  // EXAMPLES_TENSOR_PARALLEL_LLM_GOLDEN_CHECK_H_
