#include "tensor_parallel_llm/decoder.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <type_traits>

#include "common/mpi_program.h"
#include "common/separate_passes.h"
#include "common/timing.h"

namespace {

template <class T>
constexpr fcclDataType_t kDataType = std::is_same_v<T, float> ? fcclFloat32 : fcclBfloat16;

// Rotates element d against element d + half, as Hugging Face's Llama does.
void rotate(float* head, const float* cosines, const float* sines, int64_t half) {
  for (int64_t d = 0; d < half; ++d) {
    const float low = head[d];
    const float high = head[d + half];
    head[d] = low * cosines[d] - high * sines[d];
    head[d + half] = high * cosines[d] + low * sines[d];
  }
}

float dot(const float* a, const float* b, int64_t count) {
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// out = softmax(query . keys) . values over `positions` rows that lie `stride` apart.
void attend(const float* query, const float* keys, const float* values, int64_t positions, int64_t stride,
            int64_t width, float* out) {
  std::vector<float> weights(positions);
  const float scale = 1.0f / std::sqrt(static_cast<float>(width));
  for (size_t p = 0; p < weights.size(); ++p) weights[p] = scale * dot(query, keys + p * stride, width);
  const float highest = *std::max_element(weights.begin(), weights.end());
  float sum = 0;
  for (float& weight : weights) sum += weight = std::exp(weight - highest);
  std::fill_n(out, width, 0.0f);
  for (size_t p = 0; p < weights.size(); ++p) {
    for (int64_t d = 0; d < width; ++d) out[d] += weights[p] / sum * values[p * stride + d];
  }
}

}  // namespace

template <class T>
Decoder<T>::Decoder(const ModelShard& shard, fcclComm_t comm, bool fused) : shard_(shard), comm_(comm), fused_(fused) {
  const ModelConfig& config = shard.config;
  const auto convert = [](const std::vector<Bf16>& weight) {
    std::vector<T> converted;
    converted.reserve(weight.size());
    for (const Bf16 element : weight) converted.emplace_back(static_cast<float>(element));
    return converted;
  };
  const size_t cacheSize = static_cast<size_t>(config.context) * static_cast<size_t>(shard.localWidth());
  for (const LayerShard& layer : shard.layers) {
    inputNorms_.push_back(convert(layer.inputNorm));
    postAttentionNorms_.push_back(convert(layer.postAttentionNorm));
    keys_.emplace_back(cacheSize);
    values_.emplace_back(cacheSize);
  }
  finalNorm_ = convert(shard.finalNorm);
  for (int64_t position = 0; position < config.context; ++position) {
    for (int64_t d = 0; d < config.headWidth() / 2; ++d) {
      cosines_.push_back(std::cos(ropeAngle(config, position, d)));
      sines_.push_back(std::sin(ropeAngle(config, position, d)));
    }
  }
}

template <class T>
std::span<const float> Decoder<T>::forward(std::string_view bytes) {
  const ModelConfig& config = shard_.config;
  const int64_t tokens = static_cast<int>(bytes.size());
  const int64_t hidden = config.hidden;
  if (bytes.size() > static_cast<size_t>(config.context - length_)) throw std::length_error("the context is full");
  for (auto* buffer : {&stream_, &norm_, &partial_, &reduced_}) buffer->resize(bytes.size() * hidden);
  logits_.resize(bytes.size() * static_cast<size_t>(config.vocab));

  for (int64_t token = 0; token < tokens; ++token) {
    const int64_t id = static_cast<unsigned char>(bytes[token]);
    if (id >= config.vocab) throw std::out_of_range("byte " + std::to_string(id) + " is outside the vocabulary");
    for (int64_t i = 0; i < hidden; ++i) {
      stream_[token * hidden + i] = T(static_cast<float>(shard_.embedding[id * hidden + i]));
    }
  }
  // The first norm has no all-reduce before it. Every other one is fused with the all-reduce of the block before it, so
  // a layer's input norm belongs to the down projection of the layer below, and the final norm to that of the last
  // layer.
  rmsNorm(stream_.data(), inputNorms_[0].data(), static_cast<float>(config.eps), norm_.data(), tokens, hidden);
  for (size_t layer = 0; layer < shard_.layers.size(); ++layer) {
    attention(layer, tokens);
    reduceAndNorm(postAttentionNorms_[layer], tokens);
    feedForward(shard_.layers[layer], tokens);
    reduceAndNorm(layer + 1 < shard_.layers.size() ? inputNorms_[layer + 1] : finalNorm_, tokens);
  }
  length_ += tokens;

  std::vector<float> x(hidden);
  for (int64_t token = 0; token < tokens; ++token) {
    std::copy_n(norm_.begin() + token * hidden, hidden, x.begin());
    multiply(shard_.head, x.data(), &logits_[static_cast<size_t>(token * config.vocab)]);
  }
  return logits_;
}

template <class T>
std::span<const float> Decoder<T>::next(std::string_view text) {
  const auto context = static_cast<size_t>(shard_.config.context);
  if (text.size() > context) {
    text = text.substr(text.size() - context);
    reset();
  }
  return forward(text.substr(length_)).last(static_cast<size_t>(shard_.config.vocab));
}

template <class T>
void Decoder<T>::attention(size_t layer, int64_t tokens) {
  const LayerShard& weights = shard_.layers[layer];
  const int64_t hidden = shard_.config.hidden;
  const int64_t width = shard_.localWidth();
  const int64_t headWidth = shard_.config.headWidth();
  const int64_t half = headWidth / 2;
  float* keys = keys_[layer].data();
  float* values = values_[layer].data();
  std::vector<float> x(hidden), query(width), mixed(width);
  for (int64_t token = 0; token < tokens; ++token) {
    const int64_t position = length_ + token;
    std::copy_n(norm_.begin() + token * hidden, hidden, x.begin());
    multiply(weights.q, x.data(), query.data());
    multiply(weights.k, x.data(), keys + position * width);
    multiply(weights.v, x.data(), values + position * width);
    for (int64_t head = 0; head < width; head += headWidth) {
      rotate(&query[head], &cosines_[position * half], &sines_[position * half], half);
      rotate(keys + position * width + head, &cosines_[position * half], &sines_[position * half], half);
      attend(&query[head], keys + head, values + head, position + 1, width, headWidth, &mixed[head]);
    }
    multiply(weights.o, mixed.data(), x.data());
    for (int64_t i = 0; i < hidden; ++i) partial_[token * hidden + i] = T(x[i]);
  }
}

template <class T>
void Decoder<T>::feedForward(const LayerShard& layer, int64_t tokens) {
  const int64_t hidden = shard_.config.hidden;
  std::vector<float> x(hidden), gate(static_cast<size_t>(shard_.localFfn())), up(gate.size());
  for (int64_t token = 0; token < tokens; ++token) {
    std::copy_n(norm_.begin() + token * hidden, hidden, x.begin());
    multiply(layer.gate, x.data(), gate.data());
    multiply(layer.up, x.data(), up.data());
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
    multiply(layer.down, gate.data(), x.data());
    for (int64_t i = 0; i < hidden; ++i) partial_[token * hidden + i] = T(x[i]);
  }
}

template <class T>
void Decoder<T>::reduceAndNorm(const std::vector<T>& weight, int64_t tokens) {
  const ModelConfig& config = shard_.config;
  const double start = nowUs();
  if (fused_) {
    fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;
    args.pattern = fcclPatternResidualRmsNorm;
    args.dtype = kDataType<T>;
    args.tokens = tokens;
    args.hidden = config.hidden;
    args.input = partial_.data();
    args.residual = stream_.data();
    args.residualOut = stream_.data();  // in place
    args.weight = weight.data();
    args.eps = static_cast<float>(config.eps);
    args.normOut = norm_.data();
    CHECK_FCCL(comm_, fcclAllReduceFused(&args, comm_, nullptr));
    communicationUs_ += nowUs() - start;
    return;
  }
  CHECK_FCCL(comm_,
             fcclAllReduce(partial_.data(), reduced_.data(), partial_.size(), kDataType<T>, fcclSum, comm_, nullptr));
  communicationUs_ += nowUs() - start;
  addResidual(reduced_.data(), stream_.data(), stream_.data(), static_cast<int64_t>(stream_.size()));
  rmsNorm(stream_.data(), weight.data(), static_cast<float>(config.eps), norm_.data(), tokens, config.hidden);
}

template class Decoder<Bf16>;
template class Decoder<float>;
