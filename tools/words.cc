#include "tools/words.h"

#include <algorithm>
#include <cctype>

#include "lib/patterns.h"

namespace fccl::tools {

std::string plainWord(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  const size_t quant = text.find("quant_");
  return quant == std::string::npos ? text : text.erase(quant, 6);
}

fcclFusionPattern_t patternOf(const std::string& word) {
  std::string known;
  for (size_t i = 0; i < kPatterns.size(); i++) {
    if (plainWord(kPatterns[i].name) == plainWord(word)) return static_cast<fcclFusionPattern_t>(i);
    known += (i == 0 ? "" : ", ") + plainWord(kPatterns[i].name);
  }
  throw std::invalid_argument(fmt::format("--pattern is {}; it can be {}.", word, known));
}

fcclDataType_t dtypeOf(const std::string& word) {
  if (word == "bf16") return fcclBfloat16;
  if (word == "fp16") return fcclFloat16;
  if (word == "fp32") return fcclFloat32;
  throw std::invalid_argument(fmt::format("--dtype is {}; it can be bf16, fp16 or fp32.", word));
}

}  // namespace fccl::tools
