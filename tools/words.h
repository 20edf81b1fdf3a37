// Words of the command line.
#pragma once

#include <stdexcept>
#include <string>

#include "base/status.h"

namespace fccl::tools {

// The value, or its error as std::invalid_argument.
template <class T>
T valueOf(Result<T> result) {
  if (!result.ok()) throw std::invalid_argument(result.status().message());
  return std::move(result.value());
}

// "residual_rms_norm_nvfp4" and "RESIDUAL_RMS_NORM_QUANT_NVFP4" are one.
std::string plainWord(std::string text);

// Throw std::invalid_argument with the option, the value and what it can be.
fcclFusionPattern_t patternOf(const std::string& word);
fcclDataType_t dtypeOf(const std::string& word);

}  // namespace fccl::tools
