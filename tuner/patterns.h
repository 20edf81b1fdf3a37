// What each fusion pattern consists of: one row per pattern, indexed by its number.
#pragma once

#include <array>

#include "fccl.h"
#include "kernels/call.h"

namespace fccl {

struct PatternTraits {
  const char* name;
  bool norm;
  bool residual;
  bool normOut;
  QuantKind quant;
};

constexpr std::array<PatternTraits, 7> kPatterns = {{
    {"ALL_REDUCE", false, false, false, QuantKind::kNone},
    {"RMS_NORM", true, false, true, QuantKind::kNone},
    {"RESIDUAL_RMS_NORM", true, true, true, QuantKind::kNone},
    {"RESIDUAL_RMS_NORM_QUANT_FP8", true, true, false, QuantKind::kFp8},
    {"RESIDUAL_RMS_NORM_OUT_QUANT_FP8", true, true, true, QuantKind::kFp8},
    {"RESIDUAL_RMS_NORM_QUANT_NVFP4", true, true, false, QuantKind::kNvfp4},
    {"RESIDUAL_RMS_NORM_OUT_QUANT_NVFP4", true, true, true, QuantKind::kNvfp4},
}};

constexpr bool isPattern(int pattern) { return pattern >= 0 && pattern < static_cast<int>(kPatterns.size()); }

}  // namespace fccl
