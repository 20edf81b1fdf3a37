// Plans on CUDA. The same grid for every shape, small enough that the kernels of 8 ranks fit on one GPU side by side.
#include <fmt/format.h>

#include <algorithm>

#include "tuner/strategies.h"

namespace fccl {
namespace {

constexpr int kBlocks = 12;
constexpr int kThreads = 256;
constexpr int64_t kPackBytes = 16;
constexpr int64_t kPacksPerThread = 4;
constexpr int64_t kLeastPacksPerRow = 32;

int64_t ceilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }
int64_t rowBytes(const Query& query) { return query.cols * static_cast<int64_t>(host::dtypeBytes(query.dtype)); }

// Of a call without norm: a row for each block, longer where that gives whole rows, which saves the launch for the
// rest.
int64_t packsPerRow(int64_t packs) {
  constexpr int64_t kMost = kThreads * kPacksPerThread;
  const int64_t wanted = std::clamp(ceilDiv(packs, kBlocks), kLeastPacksPerRow, kMost);
  for (int64_t each = wanted; each <= kMost; each++) {
    if (packs % each == 0) return each;
  }
  return wanted;
}

}  // namespace

Reason notOnDevice(const Query& query, const Facts& facts) {
  if (facts.device != fcclDeviceCuda) return {};
  if (query.norm && rowBytes(query) > kThreads * kPacksPerThread * kPackBytes) {
    return fmt::format("hidden is {}; a CUDA communicator takes rows of up to {} bytes.", query.cols,
                       kThreads * kPacksPerThread * kPackBytes);
  }
  const bool type = query.dtype == fcclFloat32 || query.dtype == fcclFloat16 || query.dtype == fcclBfloat16;
  if (type && query.op == fcclSum) return {};
  return fmt::format(
      "{} of this op is not on CUDA yet: a CUDA communicator reduces fcclFloat32, fcclFloat16 and fcclBfloat16 with "
      "fcclSum; use a HOST communicator for anything else.",
      host::dtypeName(query.dtype));
}

size_t cudaWorkspace(const Query& query, const Facts& facts) {
  constexpr size_t kEpochs = 3;
  constexpr size_t kHalves = 2;
  const auto row = static_cast<size_t>(ceilDiv(rowBytes(query), kPackBytes) * kPackBytes);
  return kEpochs * kHalves * static_cast<size_t>(facts.ranks) * static_cast<size_t>(query.rows) * row;
}

Plan planOnCuda(fcclStrategy_t strategy, host::Protocol protocol, const Query& query) {
  Plan plan;
  plan.strategy = strategy;
  plan.protocol = protocol;
  plan.blocks = kBlocks;
  plan.threads = kThreads;
  if (!query.norm) {
    const int64_t packs = ceilDiv(rowBytes(query), kPackBytes);
    plan.columns = packsPerRow(packs) * (kPackBytes / static_cast<int64_t>(host::dtypeBytes(query.dtype)));
  }
  return plan;
}

}  // namespace fccl
