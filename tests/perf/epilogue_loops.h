// What an engine runs after an all-reduce that knows no epilogue: residual add, RMSNorm and quantization as loops of
// their own, and the conversions that bf16 and fp16 need to go through MPI. FCCL is compared with these, so they are as
// fast as we can make them: vectorised for the best instruction set of this CPU, one pass over a row while it is in L1.
#pragma once

#include <cstdint>
#include <span>

#include "fccl.h"

namespace fccl::perf {

struct EpilogueArgs {
  fcclFusionPattern_t pattern = fcclPatternResidualRmsNorm;
  fcclDataType_t dtype = fcclBfloat16;    // of all but `sum`: fp32, fp16 or bf16; weight included
  fcclDataType_t sumType = fcclBfloat16;  // fp32 or dtype
  int64_t tokens = 0;
  int64_t hidden = 0;
  const void* sum = nullptr;  // [tokens, hidden], may be normOut
  const void* residual = nullptr;
  const void* weight = nullptr;
  float weightBias = 0.0f;
  float eps = 1e-5f;
  void* residualOut = nullptr;  // may be residual
  void* normOut = nullptr;
  uint8_t* quantOut = nullptr;
  uint8_t* scaleOut = nullptr;  // padding is left alone: zeroed once by whoever allocates
  float fp8DequantScale = 1.0f;
  float nvfp4GlobalScale = 1.0f;
  fcclScaleLayout_t scaleLayout = fcclScaleSwizzled128x4;
};

struct EpilogueLoops {
  const char* isa;
  void (*epilogue)(const EpilogueArgs& args);
  // fp16 or bf16 and fp32; narrow multiplies by `factor` first.
  void (*widen)(fcclDataType_t dtype, const void* in, float* out, size_t count);
  void (*narrow)(fcclDataType_t dtype, const float* in, float factor, void* out, size_t count);
  // inout = inout op in, in fp32, rounded once: an MPI user operator for fp16 and bf16. Avg counts as sum.
  void (*combine)(fcclDataType_t dtype, fcclRedOp_t op, const void* in, void* inout, size_t count);
};

// The best for this CPU.
const EpilogueLoops& epilogueLoops();
// All that this CPU can run, best first.
std::span<const EpilogueLoops* const> allEpilogueLoops();

// Byte offset of block `block` of row `row`, and bytes of the whole buffer; see fcclScaleLayout_t.
size_t scaleOffset(fcclScaleLayout_t layout, int64_t row, int64_t block, int64_t blocks);
size_t scaleBytes(fcclScaleLayout_t layout, int64_t rows, int64_t blocks);

}  // namespace fccl::perf
