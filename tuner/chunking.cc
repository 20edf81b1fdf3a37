#include "tuner/chunking.h"

#include <algorithm>

#include "kernels/fp8_wire.h"

namespace fccl {
namespace {

size_t roundUp(size_t n) {
  constexpr size_t unit = kCutUnit;
  return (n + unit - 1) / unit * unit;
}
int64_t ceilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// The fewest runs of at most `limit` columns, all equal but the last.
int64_t equalRuns(int64_t cols, int64_t limit) {
  if (cols <= limit) return cols;
  const int64_t runs = ceilDiv(cols, limit);
  return std::min(limit, static_cast<int64_t>(roundUp(static_cast<size_t>(ceilDiv(cols, runs)))));
}

// Whole units of columns in `bytes`.
int64_t columnsIn(size_t bytes, size_t elementBytes) {
  return static_cast<int64_t>(bytes / (static_cast<size_t>(kCutUnit) * elementBytes)) * kCutUnit;
}

// The same for a row of FP8.
int64_t fp8ColumnsIn(size_t bytes) {
  // The scales take a 32nd, and round up.
  int64_t cols = static_cast<int64_t>(bytes) * 32 / 33 / kCutUnit * kCutUnit;
  while (cols > 0 && fp8RowBytes(cols) > static_cast<int64_t>(bytes)) cols -= kCutUnit;
  return cols;
}

// At most this much of a gather slot per row: every output that a pattern may have.
size_t gatheredRowBytes(const Query& query) {
  const auto cols = static_cast<size_t>(query.cols);
  const size_t fp8 = roundUp(cols);
  const size_t nvfp4 = roundUp(cols / 2) + roundUp(cols / kNvfp4Block);
  return 3 * slotRowStride(query) + std::max(fp8, nvfp4);
}

}  // namespace

size_t payloadBytes(const Query& query) {
  return static_cast<size_t>(query.rows) * static_cast<size_t>(query.cols) * host::dtypeBytes(query.dtype);
}

size_t slotRowStride(const Query& query) {
  return roundUp(static_cast<size_t>(query.cols) * host::dtypeBytes(query.dtype));
}

size_t rowScratchBytes(const Query& query) { return query.norm ? slotRowStride(query) + 2 * kCutUnit : 0; }

host::Shape cutForAll(const Query& query, size_t slotBytes, size_t wantedBytes) {
  host::Shape shape;
  const size_t elementBytes = host::dtypeBytes(query.dtype);
  const size_t wanted = std::min(slotBytes, wantedBytes);
  const size_t stride = slotRowStride(query);
  if (query.norm && stride <= slotBytes) {
    shape.rowsPerChunk = std::min(query.rows, std::max<int64_t>(1, static_cast<int64_t>(wanted / stride)));
    shape.colsPerChunk = query.cols;
  } else {
    shape.rowsPerChunk = 1;
    const int64_t limit = columnsIn(query.norm ? slotBytes : wanted, elementBytes);
    shape.colsPerChunk = equalRuns(query.cols, std::max(limit, kCutUnit));
  }
  return shape;
}

host::Shape cutForOwners(const Query& query, const Facts& facts, host::Wire wire, size_t wantedBytes) {
  host::Shape shape;
  shape.colsPerChunk = 0;
  const bool lamport = wire == host::Wire::kLamport;
  const auto ranks = static_cast<size_t>(facts.ranks);
  const size_t elementBytes = host::dtypeBytes(query.dtype);
  const size_t share = lamport ? facts.lamportSlotBytes : facts.slotBytes / ranks;
  const size_t wantedShare = wantedBytes / ranks;
  if (query.norm) {
    const size_t stride = slotRowStride(query);
    const size_t gathered = lamport ? share / stride : facts.slotBytes / gatheredRowBytes(query);
    const size_t most = std::min(share / stride, gathered);
    if ((query.rows < facts.ranks && !query.residualSharded) || most == 0) return shape;
    const size_t wanted = std::max<size_t>(1, wantedShare / stride);
    shape.rowsPerChunk = std::min(static_cast<int64_t>(std::min(most, wanted)), ceilDiv(query.rows, facts.ranks));
    shape.colsPerChunk = query.cols;
  } else {
    const int64_t most = columnsIn(share, elementBytes);
    if (query.cols < kCutUnit * facts.ranks || most == 0) return shape;
    const int64_t perOwner = std::clamp(columnsIn(wantedShare, elementBytes), kCutUnit, most);
    shape.colsPerChunk = equalRuns(query.cols, perOwner * facts.ranks);
  }
  return shape;
}

host::Shape cutForOwnersInFp8(const Query& query, const Facts& facts, size_t wantedBytes) {
  host::Shape shape;
  shape.colsPerChunk = 0;
  const size_t share = facts.slotBytes / static_cast<size_t>(facts.ranks);
  const size_t wantedShare = wantedBytes / static_cast<size_t>(facts.ranks);
  if (query.norm) {
    const int64_t most = static_cast<int64_t>(share) / fp8RowBytes(query.cols);
    if (query.rows < facts.ranks || most == 0) return shape;
    const auto wanted = std::max<int64_t>(1, static_cast<int64_t>(wantedShare / slotRowStride(query)));
    shape.rowsPerChunk = std::min({most, wanted, ceilDiv(query.rows, facts.ranks)});
    shape.colsPerChunk = query.cols;
  } else {
    const int64_t most = fp8ColumnsIn(share);
    if (query.cols < kCutUnit * facts.ranks || most == 0) return shape;
    const int64_t perOwner = std::clamp(columnsIn(wantedShare, host::dtypeBytes(query.dtype)), kCutUnit, most);
    shape.colsPerChunk = equalRuns(query.cols, perOwner * facts.ranks);
  }
  return shape;
}

}  // namespace fccl
