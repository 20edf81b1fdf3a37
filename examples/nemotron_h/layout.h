// Which layers the model has, in which order, and what follows each all-reduce.
#ifndef EXAMPLES_NEMOTRON_H_LAYOUT_H_
#define EXAMPLES_NEMOTRON_H_LAYOUT_H_

#include <fccl.h>

#include <array>
#include <string>
#include <string_view>

enum class LayerKind { kMamba, kMoe, kTransformer, kFinal };

// Hybrid models of this family are written as a string: M a Mamba-2 layer, E a mixture of experts, * attention. The
// full size has 48 M, 48 E and 12 *, which is twelve times this group: M and E take turns, and one * follows an M.
constexpr std::string_view kLayerGroup = "MEMEM*EME";

constexpr LayerKind layerKind(int layer) {
  switch (kLayerGroup[static_cast<size_t>(layer) % kLayerGroup.size()]) {
    case 'M': return LayerKind::kMamba;
    case 'E': return LayerKind::kMoe;
    default: return LayerKind::kTransformer;
  }
}

// Cross-layer fusion: every layer ends in a row-parallel GEMM, and its all-reduce (call `layer`) takes along what comes
// next, residual add, the pre-norm of the layer after it, and that layer's quantization. So layer 0's pre-norm has no
// all-reduce, and the all-reduce of the last layer has the final norm: as many calls as layers.
constexpr LayerKind ownerOfNorm(int call, int layers) {
  return call + 1 < layers ? layerKind(call + 1) : LayerKind::kFinal;
}

// What the owner of the norm reads:
//   Mamba        its in_proj is an NVFP4 GEMM, nothing else reads the norm
//   MoE          experts are NVFP4 GEMMs, the router reads the norm in bf16
//   Transformer  q, k, v in bf16
//   final norm   the head in bf16
constexpr fcclFusionPattern_t patternOf(LayerKind owner) {
  switch (owner) {
    case LayerKind::kMamba: return fcclPatternResidualRmsNormQuantNvfp4;
    case LayerKind::kMoe: return fcclPatternResidualRmsNormOutQuantNvfp4;
    default: return fcclPatternResidualRmsNorm;
  }
}

constexpr bool writesNorm(fcclFusionPattern_t pattern) { return pattern != fcclPatternResidualRmsNormQuantNvfp4; }
constexpr bool writesQuant(fcclFusionPattern_t pattern) { return pattern != fcclPatternResidualRmsNorm; }

constexpr std::array kPatterns = {fcclPatternResidualRmsNormQuantNvfp4, fcclPatternResidualRmsNormOutQuantNvfp4,
                                  fcclPatternResidualRmsNorm};

constexpr const char* patternName(fcclFusionPattern_t pattern) {
  switch (pattern) {
    case fcclPatternResidualRmsNormQuantNvfp4: return "RESIDUAL_RMS_NORM_QUANT_NVFP4";
    case fcclPatternResidualRmsNormOutQuantNvfp4: return "RESIDUAL_RMS_NORM_OUT_QUANT_NVFP4";
    default: return "RESIDUAL_RMS_NORM";
  }
}

// As "layers.17 (MoE) pre-norm".
inline std::string normName(int call, int layers) {
  constexpr std::array kNames = {"Mamba", "MoE", "Transformer"};
  const LayerKind owner = ownerOfNorm(call, layers);
  if (owner == LayerKind::kFinal) return "final norm";
  return "layers." + std::to_string(call + 1) + " (" + kNames[static_cast<size_t>(owner)] + ") pre-norm";
}

#endif  // EXAMPLES_NEMOTRON_H_LAYOUT_H_
