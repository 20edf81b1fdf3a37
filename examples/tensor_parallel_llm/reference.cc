#include "tensor_parallel_llm/reference.h"

#include <algorithm>
#include <cmath>

namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

Row product(const Matrix& matrix, const Row& x) {
  Row y(matrix.outputs);
  for (int64_t input = 0; input < matrix.inputs; ++input) {
    for (int64_t output = 0; output < matrix.outputs; ++output) {
      y[output] += x[input] * static_cast<double>(matrix.weights[input * matrix.outputs + output]);
    }
  }
  return y;
}

Row rmsNorm(const Row& row, const std::vector<Bf16>& weight, double eps) {
  double squares = 0;
  for (const double element : row) squares += element * element;
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(row.size()) + eps);
  Row norm;
  for (size_t i = 0; i < row.size(); ++i)
    norm.push_back(row[i] * scale * static_cast<double>(static_cast<float>(weight[i])));
  return norm;
}

void add(Row& row, const Row& term) {
  for (size_t i = 0; i < row.size(); ++i) row[i] += term[i];
}

void rotateHeads(Row& row, int64_t position, const ModelConfig& config) {
  const int64_t half = config.headWidth() / 2;
  for (int64_t head = 0; head < config.hidden; head += config.headWidth()) {
    for (int64_t d = 0; d < half; ++d) {
      const auto angle = static_cast<double>(ropeAngle(config, position, d));
      const double low = row[head + d];
      const double high = row[head + d + half];
      row[head + d] = low * std::cos(angle) - high * std::sin(angle);
      row[head + d + half] = low * std::sin(angle) + high * std::cos(angle);
    }
  }
}

// The last query against all keys and values so far, head by head.
Row attend(const Row& query, const Rows& keys, const Rows& values, const ModelConfig& config) {
  const int64_t width = config.headWidth();
  Row mixed(query.size());
  for (int64_t head = 0; head < config.hidden; head += width) {
    Row weights;
    for (const Row& key : keys) {
      double score = 0;
      for (int64_t d = head; d < head + width; ++d) score += query[d] * key[d];
      weights.push_back(score / std::sqrt(static_cast<double>(width)));
    }
    const double highest = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - highest);
    for (size_t p = 0; p < values.size(); ++p) {
      for (int64_t d = head; d < head + width; ++d) mixed[d] += weights[p] / sum * values[p][d];
    }
  }
  return mixed;
}

}  // namespace

std::vector<double> referenceLogits(const ModelShard& whole, std::string_view text) {
  const ModelConfig& config = whole.config;
  const double eps = config.eps;
  std::vector<Rows> keys(whole.layers.size()), values(whole.layers.size());
  std::vector<double> logits;
  for (const char byte : text) {
    const auto position = static_cast<int64_t>(keys[0].size());
    const auto embedding = whole.embedding.begin() + static_cast<unsigned char>(byte) * config.hidden;
    Row stream;
    for (int64_t i = 0; i < config.hidden; ++i) stream.push_back(static_cast<double>(static_cast<float>(embedding[i])));
    for (size_t index = 0; index < whole.layers.size(); ++index) {
      const LayerShard& layer = whole.layers[index];
      Row x = rmsNorm(stream, layer.inputNorm, eps);
      Row query = product(layer.q, x);
      Row key = product(layer.k, x);
      rotateHeads(query, position, config);
      rotateHeads(key, position, config);
      keys[index].push_back(key);
      values[index].push_back(product(layer.v, x));
      add(stream, product(layer.o, attend(query, keys[index], values[index], config)));

      x = rmsNorm(stream, layer.postAttentionNorm, eps);
      Row gate = product(layer.gate, x);
      const Row up = product(layer.up, x);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1.0 + std::exp(-gate[i])) * up[i];
      add(stream, product(layer.down, gate));
    }
    const Row row = product(whole.head, rmsNorm(stream, whole.finalNorm, eps));
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}
