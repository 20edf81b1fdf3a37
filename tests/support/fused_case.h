// A fused call as a test sees it: what is asked, data for every rank, buffers of the exact size, and the comparison of
// everything that comes out with the reference.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fccl.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/reference.h"
#include "tests/support/test_data.h"
#include "tests/support/thread_ranks.h"

namespace fccl::test {

enum class Quant { kNone, kFp8, kNvfp4 };

struct PatternTraits {
  bool residual;
  bool norm;
  bool normOut;
  Quant quant;
  fcclFusionPattern_t withNormOut;  // the pattern that gives the same and normOut
};
const PatternTraits& traits(fcclFusionPattern_t pattern);
// All seven.
const std::vector<fcclFusionPattern_t>& allPatterns();

struct FusedCase {
  fcclFusionPattern_t pattern = fcclPatternResidualRmsNorm;
  fcclDataType_t dtype = fcclBfloat16;
  int64_t tokens = 1;
  int64_t hidden = 64;
  bool fp32Weight = false;
  float weightBias = 0;
  float eps = 1e-5f;
  bool reducedOut = false;  // ask for it although the pattern does not need it
  fcclScaleLayout_t layout = fcclScaleSwizzled128x4;
  fcclStrategy_t strategy = fcclStrategyAuto;
  DataKind data = DataKind::kPlain;
  uint64_t seed = 1;
  float fp8DequantScale = 0.0137f;
  float nvfp4GlobalScale = 448.0f;
  bool sharded = false;          // residualSharded, where the pattern has a residual
  bool residualInPlace = false;  // residualOut == residual
  bool reducedInPlace = false;   // reducedOut == input
  bool normInPlace = false;      // normOut == input
  GuardedBuffer::Guard guard = GuardedBuffer::Guard::kAfter;

  size_t count() const { return static_cast<size_t>(tokens * hidden); }
  fcclDataType_t weightType() const { return fp32Weight ? fcclFloat32 : dtype; }
  std::string describe() const;
};

// What most tests vary; the rest as above.
inline FusedCase fusedCase(fcclFusionPattern_t pattern, fcclDataType_t dtype, int64_t tokens, int64_t hidden,
                           fcclStrategy_t strategy = fcclStrategyAuto, uint64_t seed = 1) {
  return {.pattern = pattern, .dtype = dtype, .tokens = tokens, .hidden = hidden, .strategy = strategy, .seed = seed};
}

inline FusedCase lowPrecisionCase(fcclFusionPattern_t pattern, fcclDataType_t dtype, int64_t tokens, int64_t hidden) {
  FusedCase asked = fusedCase(pattern, dtype, tokens, hidden, fcclStrategyLowPrecision);
  asked.reducedOut = true;
  return asked;
}

// With a sharded residual `residual` is this rank's share; what a call on all ranks returns has all shares together.
struct FusedOutputs {
  Bytes reduced;
  Bytes residual;
  Bytes norm;
  Bytes quant;
  Bytes scales;
  bool operator==(const FusedOutputs&) const = default;
};

// The data of all ranks and what must come of them. A test may change inputs, residual or weight before the first
// check.
class FusedProblem {
 public:
  FusedProblem(const FusedCase& asked, int ranks);

  const FusedCase& asked() const { return asked_; }
  int ranks() const { return static_cast<int>(inputs.size()); }

  std::vector<Bytes> inputs;  // per rank
  Bytes residual;
  Bytes weight;

  // Empty where everything in `outputs` that `pattern` has is right. `norm`: n as the library rounded it, which
  // quantization starts from; patterns with normOut pass outputs.norm.
  std::string check(fcclFusionPattern_t pattern, const FusedOutputs& outputs, const Bytes& norm);

 private:
  double residualValue(size_t row, size_t column) const;
  void expect();
  std::string checkRows(fcclFusionPattern_t pattern, const FusedOutputs& outputs, const Bytes& norm, int64_t first,
                        int64_t last) const;

  FusedCase asked_;
  bool expected_ = false;
  Bytes reduced_;
  Bytes residualOut_;
};

// Inputs and sums that FP8 holds. One rank has any value of e4m3 times a power of two and the others have zero, or all
// have small integers (up to 16 ranks), elements and ranks drawn.
void holdInFp8(FusedProblem& problem, bool integers, int powerOfTwo = 0);
// Inputs of mean 0 and deviation 1, independent of each other.
void makeNormal(FusedProblem& problem, uint64_t seed);

// One rank's buffers, each of the exact documented size beside a guard page, outputs full of poison.
class FusedBuffers {
 public:
  FusedBuffers(const FusedProblem& problem, int rank, fcclFusionPattern_t pattern);

  fcclFusedArgs_t args = FCCL_FUSED_ARGS_INITIALIZER;

  const FusedCase& asked() const { return asked_; }
  // Of residual and residualOut: with a sharded residual this rank's share.
  size_t residualBytes() const { return residualBytes_; }
  FusedOutputs outputs() const;
  // Empty where all canaries are whole and inputs that are no outputs are as they were.
  std::string intact() const;
  // True while no output has been written to.
  bool untouched() const;

 private:
  struct Input {
    GuardedBuffer buffer;
    Bytes original;
    bool overwritten = false;  // aliased by an output
  };
  static Input makeInput(const Bytes& bytes, GuardedBuffer::Guard guard);
  static Bytes contents(const void* data, size_t bytes);

  FusedCase asked_;
  size_t residualBytes_ = 0;
  Input input_;
  Input residual_;
  Input weight_;
  Input fp8Scale_;
  Input globalScale_;
  GuardedBuffer reducedOut_;
  GuardedBuffer residualOut_;
  GuardedBuffer normOut_;
  GuardedBuffer quantOut_;
  GuardedBuffer scaleOut_;
};

// One rank's call: what it gets must be in `own` when it returns.
using FusedCall = std::function<fcclResult_t(Rank& rank, FusedBuffers& own)>;
// fcclAllReduceFused with the buffers as they are.
fcclResult_t callOnHost(Rank& rank, FusedBuffers& own);

// One call on all ranks, all of which must have the same bytes; nothing else is checked. Returns rank 0's outputs.
FusedOutputs callFused(RankGroup& group, const FusedProblem& problem, const FusedCall& call = nullptr);

// Runs the case on all ranks, by the call of suiteDevice() unless another is given (and, where its pattern has no
// normOut, first the one that has), checks every byte of every output on every rank, and returns rank 0's outputs;
// `norm` is always filled. A difference fails the test.
FusedOutputs runFused(RankGroup& group, FusedProblem& problem, const FusedCall& call = nullptr);
FusedOutputs runFused(RankGroup& group, const FusedCase& asked, const FusedCall& call = nullptr);

}  // namespace fccl::test
