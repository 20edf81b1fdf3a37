#include "lib/validate.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "lib/overlap.h"
#include "lib/struct_header.h"
#include "tuner/patterns.h"

namespace fccl {
namespace {

constexpr int64_t kMaxBytes = std::numeric_limits<ptrdiff_t>::max();

// An enum field of the caller's may hold any number, which only an int can carry without undefined behaviour.
template <class Enum>
int number(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(int));
  int result;
  std::memcpy(&result, &value, sizeof(result));
  return result;
}

bool isDataType(int dtype) { return dtype >= fcclInt8 && dtype <= fcclBfloat16; }
bool isScaleLayout(int layout) { return layout >= fcclScaleSwizzled128x4 && layout <= fcclScaleLinear; }

Status checkStream(fcclStream_t stream, fcclDeviceType_t device) {
  if (stream == nullptr || device == fcclDeviceCuda) return {};
  return failure(fcclInvalidArgument, "stream is {}; a HOST communicator has no streams, pass NULL.",
                 static_cast<const void*>(stream));
}

Status checkPointer(const char* name, const void* pointer, size_t alignment) {
  if (pointer == nullptr) return failure(fcclInvalidArgument, "{} is NULL.", name);
  if (reinterpret_cast<uintptr_t>(pointer) % alignment == 0) return {};
  return failure(fcclInvalidArgument, "{} is {}, which is not aligned to its elements of {} bytes.", name, pointer,
                 alignment);
}

// The size of a scale buffer in bytes, or -1 where it does not fit.
int64_t scaleBytes(int64_t tokens, int64_t hidden, fcclScaleLayout_t layout) {
  const int64_t rowUnit = layout == fcclScaleSwizzled128x4 ? 128 : layout == fcclScaleSwizzled8x4 ? 8 : 1;
  const int64_t blockUnit = layout == fcclScaleLinear ? 1 : 4;
  const int64_t rows = tokens / rowUnit + (tokens % rowUnit != 0);
  const int64_t blocks = hidden / kNvfp4Block;
  const int64_t paddedBlocks = (blocks + blockUnit - 1) / blockUnit * blockUnit;
  int64_t bytes = 0;
  if (__builtin_mul_overflow(rows, rowUnit, &bytes) || __builtin_mul_overflow(bytes, paddedBlocks, &bytes)) return -1;
  return bytes;
}

// The checks of fcclAllReduceFused, field by field.
class FusedCheck {
 public:
  FusedCheck(const fcclFusedArgs_t& args, const Caller& caller, CheckedCall* checked)
      : args_(args), traits_(kPatterns[static_cast<size_t>(args.pattern)]), caller_(caller), checked_(checked) {}

  Status run() {
    FCCL_TRY(checkNumbers());
    if (args_.inputPushed != 0) FCCL_TRY(checkPushed());
    if (args_.residualSharded != 0) FCCL_TRY(checkSharded());
    if (!checked_->empty()) {
      FCCL_TRY(checkSizes());
      FCCL_TRY(checkPresent());
    }
    FCCL_TRY(checkAbsent());
    if (!checked_->empty()) FCCL_TRY(checkOverlaps());
    fill();
    return {};
  }

 private:
  Status checkNumbers() {
    FCCL_TRY(checkShape(args_.tokens, args_.hidden, args_.dtype));
    if (traits_.quant == QuantKind::kNvfp4 && args_.hidden % kNvfp4Block != 0) {
      return failure(fcclInvalidArgument, "hidden is {}; pattern {} needs a multiple of {}.", args_.hidden,
                     traits_.name, kNvfp4Block);
    }
    if (args_.weightDtype != fcclFloat32 && args_.weightDtype != args_.dtype && args_.weightDtype != FCCL_DTYPE_SAME) {
      return failure(fcclInvalidArgument, "weightDtype is {}; it must be fcclFloat32, dtype ({}) or FCCL_DTYPE_SAME.",
                     args_.weightDtype, host::dtypeName(args_.dtype));
    }
    if (args_.weightBias != 0.0f && args_.weightBias != 1.0f) {
      return failure(fcclInvalidArgument, "weightBias is {}; it must be 0 or 1.", args_.weightBias);
    }
    if (!std::isfinite(args_.eps) || args_.eps < 0.0f) {
      return failure(fcclInvalidArgument, "eps is {}; it must be finite and >= 0.", args_.eps);
    }
    if (!isScaleLayout(number(args_.scaleLayout))) {
      return failure(fcclInvalidArgument, "scaleLayout is {}; it must be from {} to {} (fcclScaleLayout_t).",
                     number(args_.scaleLayout), static_cast<int>(fcclScaleSwizzled128x4),
                     static_cast<int>(fcclScaleLinear));
    }
    if (strategyName(number(args_.strategy)) == nullptr) {
      return failure(fcclInvalidArgument, "strategy is {}; it must be a value of fcclStrategy_t.",
                     number(args_.strategy));
    }
    checked_->tokens = args_.tokens;
    checked_->hidden = args_.hidden;
    return {};
  }

  Status checkPushed() const {
    if (args_.inputPushed != 1) {
      return failure(fcclInvalidArgument, "inputPushed is {}; it must be 0 or 1.", args_.inputPushed);
    }
    if (caller_.device != fcclDeviceCuda) {
      return failure(fcclInvalidArgument,
                     "inputPushed is 1; a HOST communicator has no slots that a kernel could push into, leave it 0.");
    }
    if (args_.strategy != fcclStrategyAuto && args_.strategy != fcclStrategyOneshot) {
      return failure(fcclInvalidArgument,
                     "inputPushed is 1 and strategy is {}; only ONESHOT takes what was pushed, ask for it or for AUTO.",
                     strategyName(args_.strategy));
    }
    return checkPushedRow(args_.hidden, args_.dtype);
  }

  Status checkSharded() const {
    if (args_.residualSharded != 1) {
      return failure(fcclInvalidArgument, "residualSharded is {}; it must be 0 or 1.", args_.residualSharded);
    }
    if (!traits_.residual) {
      return failure(fcclInvalidArgument, "residualSharded is 1; pattern {} has no residual, leave it 0.",
                     traits_.name);
    }
    if (args_.strategy != fcclStrategyAuto && args_.strategy != fcclStrategyTwoshot) {
      return failure(
          fcclInvalidArgument,
          "residualSharded is 1 and strategy is {}; only TWOSHOT leaves each row's norm to the rank that has "
          "its residual, ask for it or for AUTO.",
          strategyName(args_.strategy));
    }
    if (args_.inputPushed != 0) {
      return failure(fcclInvalidArgument,
                     "inputPushed and residualSharded are both 1; what was pushed is ONESHOT's, whose ranks need the "
                     "whole residual: leave one of them 0.");
    }
    if (args_.reducedOut != nullptr) {
      return failure(fcclInvalidArgument,
                     "reducedOut is {} and residualSharded is 1; the sums are not gathered then, pass NULL.",
                     args_.reducedOut);
    }
    return {};
  }

  Status checkSizes() {
    elementBytes_ = host::dtypeBytes(args_.dtype);
    weightBytes_ = weightIsFp32() ? sizeof(float) : elementBytes_;
    int64_t elements = 0;
    int64_t bytes = 0;
    int64_t weight = 0;
    if (__builtin_mul_overflow(args_.tokens, args_.hidden, &elements) ||
        __builtin_mul_overflow(elements, static_cast<int64_t>(elementBytes_), &bytes) ||
        __builtin_mul_overflow(args_.hidden, static_cast<int64_t>(weightBytes_), &weight)) {
      return failure(fcclInvalidArgument, "tokens {} * hidden {} * {} bytes is more than {} bytes.", args_.tokens,
                     args_.hidden, elementBytes_, kMaxBytes);
    }
    dataBytes_ = static_cast<size_t>(bytes);
    residualBytes_ = dataBytes_;
    if (args_.residualSharded != 0) {
      const int64_t own = ownRows(args_.tokens, caller_.ranks, caller_.rank).count;
      residualBytes_ = static_cast<size_t>(own) * (dataBytes_ / static_cast<size_t>(args_.tokens));
    }
    quantBytes_ = static_cast<size_t>(traits_.quant == QuantKind::kNvfp4 ? elements / 2 : elements);
    if (traits_.quant == QuantKind::kNvfp4) {
      const int64_t scales = scaleBytes(args_.tokens, args_.hidden, args_.scaleLayout);
      if (scales < 0) {
        return failure(fcclInvalidArgument, "The scales of tokens {} x hidden {} are more than {} bytes.", args_.tokens,
                       args_.hidden, kMaxBytes);
      }
      scaleBytes_ = static_cast<size_t>(scales);
    }
    return {};
  }

  // The pattern is named, since whether a field is needed depends on it.
  Status need(const char* name, const void* pointer, size_t alignment) const {
    if (pointer == nullptr) return failure(fcclInvalidArgument, "{} is NULL; pattern {} needs it.", name, traits_.name);
    return checkPointer(name, pointer, alignment);
  }
  Status refuse(const char* name, const void* pointer) const {
    if (pointer == nullptr) return {};
    return failure(fcclInvalidArgument, "{} is {}; pattern {} has none, it must be NULL.", name, pointer, traits_.name);
  }

  Status checkPresent() const {
    FCCL_TRY(need("input", args_.input, elementBytes_));
    if (traits_.residual && residualBytes_ != 0) {
      FCCL_TRY(need("residual", args_.residual, elementBytes_));
      FCCL_TRY(need("residualOut", args_.residualOut, elementBytes_));
    }
    if (traits_.norm) FCCL_TRY(need("weight", args_.weight, weightBytes_));
    if (traits_.normOut) FCCL_TRY(need("normOut", args_.normOut, elementBytes_));
    if (traits_.quant != QuantKind::kNone) FCCL_TRY(need("quantOut", args_.quantOut, 1));
    if (traits_.quant == QuantKind::kFp8) FCCL_TRY(need("fp8DequantScale", args_.fp8DequantScale, alignof(float)));
    if (traits_.quant == QuantKind::kNvfp4) {
      FCCL_TRY(need("scaleOut", args_.scaleOut, 1));
      FCCL_TRY(need("nvfp4GlobalScale", args_.nvfp4GlobalScale, alignof(float)));
    }
    if (!traits_.norm || args_.reducedOut != nullptr) FCCL_TRY(need("reducedOut", args_.reducedOut, elementBytes_));
    return {};
  }

  Status checkAbsent() const {
    if (!traits_.residual) {
      FCCL_TRY(refuse("residual", args_.residual));
      FCCL_TRY(refuse("residualOut", args_.residualOut));
    }
    if (!traits_.norm) FCCL_TRY(refuse("weight", args_.weight));
    if (!traits_.normOut) FCCL_TRY(refuse("normOut", args_.normOut));
    if (traits_.quant == QuantKind::kNone) FCCL_TRY(refuse("quantOut", args_.quantOut));
    if (traits_.quant != QuantKind::kFp8) FCCL_TRY(refuse("fp8DequantScale", args_.fp8DequantScale));
    if (traits_.quant != QuantKind::kNvfp4) {
      FCCL_TRY(refuse("scaleOut", args_.scaleOut));
      FCCL_TRY(refuse("nvfp4GlobalScale", args_.nvfp4GlobalScale));
    }
    return {};
  }

  Status checkOverlaps() const {
    BufferList buffers;
    const int input = buffers.add("input", args_.input, dataBytes_, false);
    const int residual = buffers.add("residual", args_.residual, residualBytes_, false);
    buffers.add("weight", args_.weight, static_cast<size_t>(args_.hidden) * weightBytes_, false);
    buffers.add("fp8DequantScale", args_.fp8DequantScale, sizeof(float), false);
    buffers.add("nvfp4GlobalScale", args_.nvfp4GlobalScale, sizeof(float), false);
    buffers.add("reducedOut", args_.reducedOut, dataBytes_, true, input);
    buffers.add("residualOut", args_.residualOut, residualBytes_, true, residual);
    buffers.add("normOut", args_.normOut, dataBytes_, true, input);
    buffers.add("quantOut", args_.quantOut, quantBytes_, true);
    buffers.add("scaleOut", args_.scaleOut, scaleBytes_, true);
    return buffers.check();
  }

  void fill() const {
    RowArgs& rows = checked_->call.rows;
    checked_->entry = EntryPoint::kAllReduceFused;
    checked_->pattern = args_.pattern;
    checked_->strategy = args_.strategy;
    checked_->call.dtype = args_.dtype;
    checked_->call.op = fcclSum;
    rows.input = args_.input;
    rows.residual = args_.residual;
    rows.weight = args_.weight;
    rows.reducedOut = args_.reducedOut;
    rows.residualOut = args_.residualOut;
    rows.normOut = args_.normOut;
    rows.quantOut = static_cast<uint8_t*>(args_.quantOut);
    rows.scaleOut = static_cast<uint8_t*>(args_.scaleOut);
    rows.quantScale = traits_.quant == QuantKind::kFp8 ? args_.fp8DequantScale : args_.nvfp4GlobalScale;
    rows.rows = traits_.norm ? args_.tokens : 1;
    rows.cols = traits_.norm || checked_->empty() ? args_.hidden : args_.tokens * args_.hidden;
    rows.eps = args_.eps;
    rows.weightBias = args_.weightBias;
    rows.weightIsFp32 = weightIsFp32();
    rows.quant = traits_.quant;
    rows.scaleLayout = static_cast<uint8_t>(args_.scaleLayout);
    rows.inputPushed = args_.inputPushed != 0;
    rows.residualSharded = args_.residualSharded != 0;
  }

  bool weightIsFp32() const {
    return args_.weightDtype == fcclFloat32 || (args_.weightDtype == FCCL_DTYPE_SAME && args_.dtype == fcclFloat32);
  }

  const fcclFusedArgs_t& args_;
  const PatternTraits& traits_;
  const Caller& caller_;
  CheckedCall* checked_;
  size_t elementBytes_ = 0;
  size_t weightBytes_ = 0;
  size_t dataBytes_ = 0;
  size_t residualBytes_ = 0;
  size_t quantBytes_ = 0;
  size_t scaleBytes_ = 0;
};

// Version 2 had padding where residualSharded is.
constexpr unsigned int kWithoutSharded = 2;
static_assert(offsetof(fcclFusedArgs_t, residualSharded) + sizeof(int) == sizeof(fcclFusedArgs_t));

Status checkPattern(int pattern) {
  if (isPattern(pattern)) return {};
  return failure(fcclInvalidArgument, "pattern is {}; it must be from 0 to {} (fcclFusionPattern_t).", pattern,
                 kPatterns.size() - 1);
}

}  // namespace

Status checkAllReduce(const void* sendbuff, void* recvbuff, size_t count, fcclDataType_t datatype, fcclRedOp_t op,
                      fcclStream_t stream, fcclDeviceType_t device, CheckedCall* checked) {
  if (!isDataType(number(datatype))) {
    return failure(fcclInvalidArgument, "datatype is {}; it must be from {} to {} (fcclDataType_t).", number(datatype),
                   static_cast<int>(fcclInt8), static_cast<int>(fcclBfloat16));
  }
  if (opName(number(op)) == nullptr) {
    return failure(fcclInvalidArgument, "op is {}; it must be from {} to {} (fcclRedOp_t).", number(op),
                   static_cast<int>(fcclSum), static_cast<int>(fcclAvg));
  }
  FCCL_TRY(checkStream(stream, device));
  checked->stream = stream;
  const size_t elementBytes = host::dtypeBytes(datatype);
  if (count > static_cast<size_t>(kMaxBytes) / elementBytes) {
    return failure(fcclInvalidArgument, "count {} * {} bytes is more than {} bytes.", count, elementBytes, kMaxBytes);
  }
  if (count != 0) {
    FCCL_TRY(checkPointer("sendbuff", sendbuff, elementBytes));
    FCCL_TRY(checkPointer("recvbuff", recvbuff, elementBytes));
    BufferList buffers;
    const int send = buffers.add("sendbuff", sendbuff, count * elementBytes, false);
    buffers.add("recvbuff", recvbuff, count * elementBytes, true, send);
    FCCL_TRY(buffers.check());
  }
  checked->tokens = 1;
  checked->hidden = static_cast<int64_t>(count);
  checked->call.op = op;
  checked->call.dtype = datatype;
  checked->call.rows.input = sendbuff;
  checked->call.rows.reducedOut = recvbuff;
  checked->call.rows.rows = 1;
  checked->call.rows.cols = static_cast<int64_t>(count);
  return {};
}

Status checkAllReduceFused(const fcclFusedArgs_t* args, fcclStream_t stream, const Caller& caller,
                           CheckedCall* checked) {
  if (args == nullptr) return failure(fcclInvalidArgument, "args is NULL.");
  static constexpr StructVersion kVersions[] = {{1, offsetof(fcclFusedArgs_t, inputPushed)},
                                                {kWithoutSharded, sizeof(fcclFusedArgs_t)},
                                                {FCCL_FUSED_ARGS_VERSION, sizeof(fcclFusedArgs_t)}};
  FCCL_TRY(checkHeader(*args, "fcclFusedArgs_t", "FCCL_FUSED_ARGS_INITIALIZER", FCCL_FUSED_ARGS_MAGIC, kVersions));
  if (args->version != FCCL_FUSED_ARGS_VERSION) {
    fcclFusedArgs_t whole = copyFusedArgs(args);
    whole.size = sizeof(whole);
    whole.version = FCCL_FUSED_ARGS_VERSION;
    return checkAllReduceFused(&whole, stream, caller, checked);
  }
  FCCL_TRY(checkStream(stream, caller.device));
  checked->stream = stream;
  FCCL_TRY(checkPattern(number(args->pattern)));
  return FusedCheck(*args, caller, checked).run();
}

fcclFusedArgs_t copyFusedArgs(const fcclFusedArgs_t* args) noexcept {
  static constexpr fcclFusedArgs_t kInitial = FCCL_FUSED_ARGS_INITIALIZER;
  if (args == nullptr) return kInitial;
  fcclFusedArgs_t copy = copyStruct(*args, kInitial);
  if (copy.version == kWithoutSharded) copy.residualSharded = kInitial.residualSharded;
  return copy;
}

Status checkPushedRow(int64_t hidden, fcclDataType_t dtype) {
  const auto perPack = static_cast<int64_t>(16 / host::dtypeBytes(dtype));
  if (hidden % perPack == 0) return {};
  return failure(fcclInvalidArgument,
                 "hidden is {}; rows that are pushed are whole packs of 16 bytes, {} elements of {}.", hidden, perPack,
                 host::dtypeName(dtype));
}

Status checkShape(int64_t tokens, int64_t hidden, const fcclDataType_t& dtype) {
  const int type = number(dtype);
  if (type != fcclFloat32 && type != fcclFloat16 && type != fcclBfloat16) {
    return failure(fcclInvalidArgument, "dtype is {}; fused calls take fcclFloat32, fcclFloat16 and fcclBfloat16.",
                   type);
  }
  if (tokens < 0) return failure(fcclInvalidArgument, "tokens is {}; it must be >= 0.", tokens);
  if (hidden <= 0) return failure(fcclInvalidArgument, "hidden is {}; it must be > 0.", hidden);
  return {};
}

Status quantScaleBytes(int64_t tokens, int64_t hidden, fcclFusionPattern_t pattern, fcclScaleLayout_t layout,
                       size_t* bytes) {
  if (bytes == nullptr) return failure(fcclInvalidArgument, "bytes is NULL.");
  FCCL_TRY(checkPattern(number(pattern)));
  if (tokens < 0) return failure(fcclInvalidArgument, "tokens is {}; it must be >= 0.", tokens);
  if (hidden <= 0) return failure(fcclInvalidArgument, "hidden is {}; it must be > 0.", hidden);
  if (!isScaleLayout(number(layout))) {
    return failure(fcclInvalidArgument, "layout is {}; it must be from {} to {} (fcclScaleLayout_t).", number(layout),
                   static_cast<int>(fcclScaleSwizzled128x4), static_cast<int>(fcclScaleLinear));
  }
  const PatternTraits& traits = kPatterns[static_cast<size_t>(pattern)];
  if (traits.quant != QuantKind::kNvfp4) {
    *bytes = 0;
    return {};
  }
  if (hidden % kNvfp4Block != 0) {
    return failure(fcclInvalidArgument, "hidden is {}; pattern {} needs a multiple of {}.", hidden, traits.name,
                   kNvfp4Block);
  }
  const int64_t result = scaleBytes(tokens, hidden, layout);
  if (result < 0) {
    return failure(fcclInvalidArgument, "The scales of tokens {} x hidden {} are more than {} bytes.", tokens, hidden,
                   kMaxBytes);
  }
  *bytes = static_cast<size_t>(result);
  return {};
}

Status residualShard(int64_t tokens, int nranks, int rank, int64_t* first, int64_t* count) {
  if (first == nullptr) return failure(fcclInvalidArgument, "first is NULL.");
  if (count == nullptr) return failure(fcclInvalidArgument, "count is NULL.");
  if (tokens < 0) return failure(fcclInvalidArgument, "tokens is {}; it must be >= 0.", tokens);
  if (nranks <= 0) return failure(fcclInvalidArgument, "nranks is {}; it must be > 0.", nranks);
  if (rank < 0 || rank >= nranks) {
    return failure(fcclInvalidArgument, "rank is {}; it must be from 0 to {} (nranks - 1).", rank, nranks - 1);
  }
  const RowRange own = ownRows(tokens, nranks, rank);
  *first = own.first;
  *count = own.count;
  return {};
}

const char* strategyName(int strategy) {
  switch (strategy) {
    case fcclStrategyMinLatency: return "MIN_LATENCY";
    case fcclStrategyUb: return "UB";
    case fcclStrategyAuto: return "AUTO";
    case fcclStrategyOneshot: return "ONESHOT";
    case fcclStrategyTwoshot: return "TWOSHOT";
    case fcclStrategyNccl: return "NCCL";
    case fcclStrategyLowPrecision: return "LOWPRECISION";
    case fcclStrategyNcclSymmetric: return "NCCL_SYMMETRIC";
    default: return nullptr;
  }
}

const char* opName(int op) {
  switch (op) {
    case fcclSum: return "sum";
    case fcclProd: return "prod";
    case fcclMax: return "max";
    case fcclMin: return "min";
    case fcclAvg: return "avg";
    default: return nullptr;
  }
}

}  // namespace fccl
