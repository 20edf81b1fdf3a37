// A Llama-shaped checkpoint as Hugging Face writes it, and the part of it that one rank of a tensor-parallel group
// holds.
#ifndef EXAMPLES_TENSOR_PARALLEL_LLM_MODEL_H_
#define EXAMPLES_TENSOR_PARALLEL_LLM_MODEL_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/bf16.h"
#include "tensor_parallel_llm/safetensors.h"

struct ModelConfig {
  int64_t vocab = 0;
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t ffn = 0;
  int64_t context = 0;
  double eps = 0;
  double ropeTheta = 0;

  int64_t headWidth() const { return hidden / heads; }
};

// By how much the rotary embedding turns the pair d of a head at a position. In fp32, as Hugging Face has it: the
// rounding of the angle is part of the model.
float ropeAngle(const ModelConfig& config, int64_t position, int64_t d);

// Reads config.json; std::runtime_error names the field that is missing, wrong, or asks for what this program lacks.
ModelConfig loadConfig(const std::filesystem::path& directory);

// A weight matrix or a part of one, stored [inputs][outputs]: the inner loop of a product then runs over outputs, which
// vectorises and adds in a fixed order, so that a token's result does not depend on how many tokens are computed with
// it.
struct Matrix {
  int64_t inputs = 0;
  int64_t outputs = 0;
  std::vector<float> weights;
};

// y = W x
void multiply(const Matrix& matrix, const float* x, float* y);

// What one rank holds. q, k, v, gate and up are split by outputs (column-parallel: whole heads, whole FFN columns), o
// and down by inputs (row-parallel: their products are partial sums). Embedding, norms and head are small and on every
// rank.
struct LayerShard {
  std::vector<Bf16> inputNorm;
  std::vector<Bf16> postAttentionNorm;
  Matrix q, k, v, o;
  Matrix gate, up, down;
};

struct ModelShard {
  ModelConfig config;
  int ranks = 1;
  std::vector<Bf16> embedding;  // [vocab][hidden]
  std::vector<LayerShard> layers;
  std::vector<Bf16> finalNorm;
  Matrix head;

  int64_t localWidth() const { return config.hidden / ranks; }  // columns of q, k and v
  int64_t localFfn() const { return config.ffn / ranks; }
};

// std::runtime_error where heads or FFN do not divide by the ranks, or the checkpoint is not what config.json says.
ModelShard loadShard(const std::filesystem::path& directory, int rank, int ranks);

#endif  // EXAMPLES_TENSOR_PARALLEL_LLM_MODEL_H_
