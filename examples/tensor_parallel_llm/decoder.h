// The forward pass of one rank: Megatron's tensor parallelism, two all-reduces a layer, each fused with what follows
// it.
#ifndef EXAMPLES_TENSOR_PARALLEL_LLM_DECODER_H_
#define EXAMPLES_TENSOR_PARALLEL_LLM_DECODER_H_

#include <fccl.h>

#include <span>
#include <string_view>
#include <vector>

#include "tensor_parallel_llm/model.h"

// T is the type of the activations that the ranks exchange, of the residual stream and of the norms' outputs: Bf16 or
// float. Inside a rank everything is float.
template <class T>
class Decoder {
 public:
  // `shard` must outlive the decoder. fused: fcclAllReduceFused; else fcclAllReduce and separate loops.
  Decoder(const ModelShard& shard, fcclComm_t comm, bool fused);

  // Appends `bytes` to what the key/value cache holds, and gives their logits [bytes][vocab], the same on every rank,
  // valid until the next call. length() + bytes may not exceed the context.
  std::span<const float> forward(std::string_view bytes);

  // Logits of the byte that follows `text`: extends the cache by what it lacks of `text`. Past the context the window
  // slides, which moves every position, so the cache is of no use and the window is computed afresh.
  std::span<const float> next(std::string_view text);

  void reset() { length_ = 0; }
  int64_t length() const { return length_; }
  const ModelConfig& config() const { return shard_.config; }
  int ranks() const { return shard_.ranks; }

  // Time inside FCCL calls since construction, waiting for slower ranks included.
  double communicationUs() const { return communicationUs_; }

 private:
  void attention(size_t layer, int64_t tokens);
  void feedForward(const LayerShard& layer, int64_t tokens);
  // stream_ += sum of partial_ over the ranks; norm_ = RMSNorm(stream_) * weight
  void reduceAndNorm(const std::vector<T>& weight, int64_t tokens);

  const ModelShard& shard_;
  fcclComm_t comm_;
  bool fused_;
  int64_t length_ = 0;
  double communicationUs_ = 0;

  std::vector<std::vector<T>> inputNorms_;          // per layer
  std::vector<std::vector<T>> postAttentionNorms_;  // per layer
  std::vector<T> finalNorm_;
  std::vector<float> cosines_, sines_;             // [context][headWidth / 2]
  std::vector<std::vector<float>> keys_, values_;  // per layer [context][localWidth]
  std::vector<T> stream_;                          // the residual stream [tokens][hidden]
  std::vector<T> norm_, partial_, reduced_;        // [tokens][hidden]
  std::vector<float> logits_;
};

#endif  // EXAMPLES_TENSOR_PARALLEL_LLM_DECODER_H_
