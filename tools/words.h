// Words of the command lines of fccl-info, fccl-tune and fccl-perf: the same names in all of them.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "base/status.h"

namespace fccl::tools {

// The value, or its error as std::invalid_argument.
template <class T>
T valueOf(Result<T> result) {
  if (!result.ok()) throw std::invalid_argument(result.status().message());
  return std::move(result.value());
}

std::string lowerCase(std::string_view text);

// As they are printed: "residual_rms_norm_quant_nvfp4", "bfloat16" (nccl-tests' names), "sum", "nccl_symmetric".
std::string nameOf(fcclFusionPattern_t pattern);
std::string nameOf(fcclDataType_t dtype);
std::string nameOf(fcclRedOp_t op);
std::string nameOf(fcclStrategy_t strategy);

// The value of --pattern, --dtype, --op and --strategy, in capitals too. Short forms are understood: "plain",
// "residual_rms_norm_nvfp4", "bf16". Throw std::invalid_argument with the option, the word and what it can be.
fcclFusionPattern_t patternOf(std::string_view word);
fcclDataType_t dtypeOf(std::string_view word);
fcclRedOp_t opOf(std::string_view word);
fcclStrategy_t strategyOf(std::string_view word);

}  // namespace fccl::tools
