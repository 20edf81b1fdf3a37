// What fccl-perf measures: one case is one call shape, and the list of cases that the options ask for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fccl.h"
#include "tools/words.h"

namespace fccl::perf {

struct Case {
  fcclFusionPattern_t pattern = fcclPatternAllReduce;
  fcclDataType_t dtype = fcclFloat32;
  fcclRedOp_t op = fcclSum;
  fcclStrategy_t strategy = fcclStrategyAuto;
  int64_t tokens = 1;
  int64_t hidden = 1;
  bool windows = false;  // FCCL's buffers are registered windows
  bool sharded = false;  // residualSharded; the residual's buffers are whole, and each rank has its share used

  size_t count() const { return static_cast<size_t>(tokens) * static_cast<size_t>(hidden); }
  size_t bytes() const;
  bool fused() const { return pattern != fcclPatternAllReduce; }
};

// Which buffers and steps a pattern has.
struct PatternTraits {
  bool residual;
  bool norm;
  bool normOut;
  bool fp8;
  bool nvfp4;
};
PatternTraits traitsOf(fcclFusionPattern_t pattern);

size_t bytesOf(fcclDataType_t dtype);
bool isSixteenBit(fcclDataType_t dtype);

// The caller's arguments of a sharded residual whose whole buffers `args` has.
void shardResidual(const Case& c, int ranks, int rank, fcclFusedArgs_t& args);

using tools::dtypeOf;
using tools::nameOf;
using tools::opOf;
using tools::patternOf;
using tools::strategyOf;

// "64", "16K", "1M", "2G"; binary multiples. Throws std::invalid_argument.
size_t bytesOfText(std::string_view text);
std::string textOfBytes(size_t bytes);  // "16 KiB"

const std::vector<fcclFusionPattern_t>& allPatterns();

// "plain float sum 16 KiB", "residual_rms_norm bfloat16 64 x 8192", with ", windows" and ", twoshot" where set.
std::string describe(const Case& c);

// One row count after the other: minBytes, minBytes * factor, ... up to maxBytes, in whole rows of `hidden` elements.
std::vector<int64_t> tokensBySize(size_t minBytes, size_t maxBytes, size_t factor, size_t rowBytes);

}  // namespace fccl::perf
