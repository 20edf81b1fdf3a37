#include "tuner/explain.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "fccl_nccl.h"
#include "lib/asked_call.h"
#include "lib/c_boundary.h"
#include "lib/struct_header.h"
#include "lib/validate.h"
#include "tuner/chunking.h"
#include "tuner/patterns.h"

namespace fccl {
namespace {

constexpr size_t kPackBytes = 16;

Status checkEnums(const fcclQuery_t& asked) {
  // As numbers: a caller in C may have put any into the enums.
  const auto pattern = static_cast<int>(asked.pattern);
  const auto op = static_cast<int>(asked.op);
  if (!isPattern(pattern)) {
    return failure(fcclInvalidArgument, "pattern is {}; it must be from 0 to {} (fcclFusionPattern_t).", pattern,
                   kPatterns.size() - 1);
  }
  if (opName(op) == nullptr) {
    return failure(fcclInvalidArgument, "op is {}; it must be from 0 to {} (fcclRedOp_t).", op,
                   static_cast<int>(fcclAvg));
  }
  if (strategyName(asked.strategy) == nullptr) {
    return failure(fcclInvalidArgument, "strategy is {}; it must be a value of fcclStrategy_t.",
                   static_cast<int>(asked.strategy));
  }
  const auto dtype = static_cast<int>(asked.dtype);
  if (dtype < fcclInt8 || dtype > fcclBfloat16) {
    return failure(fcclInvalidArgument, "dtype is {}; it must be from 0 to {} (fcclDataType_t).", dtype,
                   static_cast<int>(fcclBfloat16));
  }
  return {};
}

}  // namespace

Result<Query> queryOf(const fcclQuery_t& asked) {
  static constexpr StructVersion kVersions[] = {{FCCL_QUERY_VERSION, sizeof(fcclQuery_t)}};
  FCCL_TRY(checkHeader(asked, "fcclQuery_t", "FCCL_QUERY_INITIALIZER", FCCL_QUERY_MAGIC, kVersions));
  FCCL_TRY(checkEnums(asked));
  const PatternTraits& traits = kPatterns[static_cast<size_t>(asked.pattern)];
  if (traits.norm) {
    FCCL_TRY(checkShape(asked.tokens, asked.hidden, asked.dtype));
    if (asked.op != fcclSum) {
      return failure(fcclInvalidArgument, "op is {}; pattern {} takes fcclSum.", opName(asked.op), traits.name);
    }
  }
  if (traits.quant == QuantKind::kNvfp4 && asked.hidden % kNvfp4Block != 0) {
    return failure(fcclInvalidArgument, "hidden is {}; pattern {} needs a multiple of {}.", asked.hidden, traits.name,
                   kNvfp4Block);
  }
  if (asked.tokens <= 0) return failure(fcclInvalidArgument, "tokens is {}; it must be > 0.", asked.tokens);
  if (asked.hidden <= 0) return failure(fcclInvalidArgument, "hidden is {}; it must be > 0.", asked.hidden);
  int64_t bytes = 0;
  const auto width = static_cast<int64_t>(host::dtypeBytes(asked.dtype));
  if (__builtin_mul_overflow(asked.tokens, asked.hidden, &bytes) || __builtin_mul_overflow(bytes, width, &bytes)) {
    return failure(fcclInvalidArgument, "tokens {} * hidden {} * {} bytes is more than 64 bits hold.", asked.tokens,
                   asked.hidden, width);
  }
  Query query;
  query.dtype = asked.dtype;
  query.op = asked.op;
  query.pattern = asked.pattern;
  query.norm = traits.norm;
  query.quant = traits.quant;
  query.rows = traits.norm ? asked.tokens : 1;
  query.cols = traits.norm ? asked.hidden : asked.tokens * asked.hidden;
  const size_t rowBytes = static_cast<size_t>(query.cols * width);
  query.packsAligned = rowBytes % kPackBytes == 0;
  query.outputsAligned = rowLengthsAligned(query);
  query.inputInWindow = asked.inputInWindow != 0;
  query.outputInWindow = asked.outputInWindow != 0;
  query.windowsAligned = query.inputInWindow;
  return query;
}

std::string describeCall(const fcclQuery_t& asked, int ranks) {
  return fmt::format("{}, {} token{} x {} of {}, {} rank{}: {} bytes per rank",
                     kPatterns[static_cast<size_t>(asked.pattern)].name, asked.tokens, asked.tokens == 1 ? "" : "s",
                     asked.hidden, host::dtypeName(asked.dtype), ranks, ranks == 1 ? "" : "s",
                     asked.tokens * asked.hidden * static_cast<int64_t>(host::dtypeBytes(asked.dtype)));
}

}  // namespace fccl

using namespace fccl;

fcclResult_t fcclFasterThanNccl(fcclComm_t comm, const fcclQuery_t* query, int* faster) {
  return withCommunicator("fcclFasterThanNccl", comm, [&](Communicator& communicator) -> Status {
    if (query == nullptr) return failure(fcclInvalidArgument, "query is NULL.");
    if (faster == nullptr) return failure(fcclInvalidArgument, "faster is NULL.");
    FCCL_TRY_ASSIGN(const Query asked, queryOf(*query));
    *faster = fasterThanNccl(asked, communicator.factsForAnyThread(), query->strategy, communicator.options().strategy);
    return {};
  });
}

fcclResult_t fcclExplain(fcclComm_t comm, const fcclQuery_t* query, char* buffer, size_t size) {
  return withCommunicator("fcclExplain", comm, [&](Communicator& communicator) -> Status {
    if (query == nullptr) return failure(fcclInvalidArgument, "query is NULL.");
    if (buffer == nullptr && size > 0) return failure(fcclInvalidArgument, "buffer is NULL and size is {}.", size);
    FCCL_TRY_ASSIGN(const Query asked, queryOf(*query));
    const std::string text = explain(describeCall(*query, communicator.ranks()), asked,
                                     communicator.factsForAnyThread(), query->strategy, communicator.options().strategy)
                                 .text();
    if (size > 0) {
      const size_t fits = std::min(text.size(), size - 1);
      std::memcpy(buffer, text.data(), fits);
      buffer[fits] = '\0';
    }
    if (text.size() < size) return {};
    return failure(fcclInvalidArgument, "size is {}; this text needs {} bytes.", size, text.size() + 1);
  });
}
