#include "tensor_parallel_llm/model.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace {

// The part [outputBegin, outputEnd) x [inputBegin, inputEnd) of a matrix that the file holds as [outputs][inputs].
struct Part {
  int64_t outputBegin, outputEnd;
  int64_t inputBegin, inputEnd;
};

Matrix cut(const std::vector<Bf16>& whole, int64_t inputs, const Part& part) {
  Matrix matrix{part.inputEnd - part.inputBegin, part.outputEnd - part.outputBegin, {}};
  matrix.weights.reserve(matrix.inputs * matrix.outputs);
  for (int64_t input = part.inputBegin; input < part.inputEnd; ++input) {
    for (int64_t output = part.outputBegin; output < part.outputEnd; ++output) {
      matrix.weights.push_back(whole[output * inputs + input]);
    }
  }
  return matrix;
}

}  // namespace

ModelConfig loadConfig(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  const auto fail = [&path](const std::string& what) { throw std::runtime_error(path.string() + ": " + what); };
  std::ifstream file(path);
  if (!file) fail("cannot be opened");
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) fail("is not a JSON object");

  const auto positive = [&](const char* key) {
    const auto found = json.find(key);
    // The limit keeps products of extents far from overflow.
    if (found == json.end() || !found->is_number_integer() || *found < 1 || *found > 32768) {
      fail(std::string("needs '") + key + "', an integer from 1 to 32768");
    }
    return found->get<int64_t>();
  };
  const auto real = [&](const char* key) {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number() || found->get<double>() <= 0) {
      fail(std::string("needs '") + key + "', a number above 0");
    }
    return found->get<double>();
  };
  const ModelConfig config{positive("vocab_size"),        positive("hidden_size"),
                           positive("num_hidden_layers"), positive("num_attention_heads"),
                           positive("intermediate_size"), positive("max_position_embeddings"),
                           real("rms_norm_eps"),          real("rope_theta")};
  if (json.value("model_type", "") != "llama" || json.value("hidden_act", "") != "silu" ||
      json.value("tie_word_embeddings", true) || positive("num_key_value_heads") != config.heads) {
    fail(
        "describes a model that this program does not know: it takes model_type 'llama', hidden_act 'silu', "
        "tie_word_embeddings false and as many key/value heads as heads");
  }
  if (config.hidden % config.heads != 0 || config.headWidth() % 2 != 0) {
    fail("has hidden_size " + std::to_string(config.hidden) + " for " + std::to_string(config.heads) +
         " heads; the width of a head must be a whole, even number");
  }
  if (config.vocab > 256)
    fail("has vocab_size " + std::to_string(config.vocab) + "; tokens are bytes here, 256 at most");
  return config;
}

float ropeAngle(const ModelConfig& config, int64_t position, int64_t d) {
  const double exponent = -2.0 * static_cast<double>(d) / static_cast<double>(config.headWidth());
  return static_cast<float>(position) * static_cast<float>(std::pow(config.ropeTheta, exponent));
}

void multiply(const Matrix& matrix, const float* x, float* __restrict y) {
  std::fill_n(y, matrix.outputs, 0.0f);
  const float* __restrict row = matrix.weights.data();
  for (int64_t input = 0; input < matrix.inputs; ++input, row += matrix.outputs) {
    const float factor = x[input];
    for (int64_t output = 0; output < matrix.outputs; ++output) y[output] += factor * row[output];
  }
}

ModelShard loadShard(const std::filesystem::path& directory, int rank, int ranks) {
  ModelShard shard;
  shard.config = loadConfig(directory);
  shard.ranks = ranks;
  const ModelConfig& config = shard.config;
  if (config.heads % ranks != 0 || config.ffn % ranks != 0) {
    throw std::runtime_error("the model has " + std::to_string(config.heads) + " heads and " +
                             std::to_string(config.ffn) + " FFN columns, which " + std::to_string(ranks) +
                             " ranks cannot share evenly");
  }
  const int64_t hidden = config.hidden;
  const int64_t ffn = config.ffn;
  const int64_t width = shard.localWidth();
  const int64_t localFfn = shard.localFfn();

  const SafetensorsFile file(directory / "model.safetensors");
  const auto matrix = [&file](const std::string& name, int64_t outputs, int64_t inputs, const Part& part) {
    return cut(file.read(name, {outputs, inputs}), inputs, part);
  };
  const auto norm = [&](const std::string& name) { return file.read(name, {hidden}); };

  shard.embedding = file.read("model.embed_tokens.weight", {config.vocab, hidden});
  for (int64_t index = 0; index < config.layers; ++index) {
    const std::string prefix = "model.layers." + std::to_string(index) + ".";
    const Part heads{rank * width, (rank + 1) * width, 0, hidden};
    const Part columns{rank * localFfn, (rank + 1) * localFfn, 0, hidden};
    LayerShard layer;
    layer.inputNorm = norm(prefix + "input_layernorm.weight");
    layer.postAttentionNorm = norm(prefix + "post_attention_layernorm.weight");
    layer.q = matrix(prefix + "self_attn.q_proj.weight", hidden, hidden, heads);
    layer.k = matrix(prefix + "self_attn.k_proj.weight", hidden, hidden, heads);
    layer.v = matrix(prefix + "self_attn.v_proj.weight", hidden, hidden, heads);
    layer.o = matrix(prefix + "self_attn.o_proj.weight", hidden, hidden, {0, hidden, rank * width, (rank + 1) * width});
    layer.gate = matrix(prefix + "mlp.gate_proj.weight", ffn, hidden, columns);
    layer.up = matrix(prefix + "mlp.up_proj.weight", ffn, hidden, columns);
    layer.down =
        matrix(prefix + "mlp.down_proj.weight", hidden, ffn, {0, hidden, rank * localFfn, (rank + 1) * localFfn});
    shard.layers.push_back(std::move(layer));
  }
  shard.finalNorm = norm("model.norm.weight");
  shard.head = matrix("lm_head.weight", config.vocab, hidden, {0, config.vocab, 0, hidden});
  return shard;
}
