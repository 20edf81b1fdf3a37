// The same model on one rank in float64, in its own plain code: what the parallel forward pass is measured against.
#ifndef EXAMPLES_TENSOR_PARALLEL_LLM_REFERENCE_H_
#define EXAMPLES_TENSOR_PARALLEL_LLM_REFERENCE_H_

#include <string_view>
#include <vector>

#include "tensor_parallel_llm/model.h"

// Logits [bytes][vocab] of all positions of `text`, which fits in the context. `whole` is the shard of a single rank.
std::vector<double> referenceLogits(const ModelShard& whole, std::string_view text);

#endif  // EXAMPLES_TENSOR_PARALLEL_LLM_REFERENCE_H_
