// What TensorRT-LLM's AUTO (without its autotuner) answers, step by step: to compare with.
#pragma once

#include "tuner/registry.h"

namespace fccl {

struct CompatTrace {
  std::vector<std::string> steps;  // sentences
  const char* choice = "";
};

// MNNVL as its design document has it, which fuses no FP8 and NVFP4; later versions do.
CompatTrace trtllmTrace(const Facts& facts, fcclFusionPattern_t pattern, int64_t tokens, int64_t hidden,
                        fcclDataType_t dtype);

}  // namespace fccl
