// How a call is cut into chunks, and a chunk into parts of owners: arithmetic only.
#pragma once

#include "kernels/host/host_kernels.h"

// Internal linkage, as in simd.h: each SIMD target has its own copy.
namespace fccl::host {
namespace {

// Rows [row0, row0 + rows), of each the columns [col0, col0 + cols); col0 a multiple of 64.
struct Chunk {
  int64_t row0;
  int64_t rows;
  int64_t col0;
  int64_t cols;
};

constexpr int64_t roundUpTo64(int64_t n) { return (n + 63) / 64 * 64; }
constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Owner `owner`'s columns of [col0, col0 + cols), in multiples of 64; the last owners may have none.
constexpr Chunk shardOf(int64_t col0, int64_t cols, int ranks, int owner) {
  const int64_t each = roundUpTo64((cols + ranks - 1) / ranks);
  const int64_t begin = smaller(owner * each, cols);
  const int64_t end = smaller(begin + each, cols);
  return Chunk{0, end > begin ? 1 : 0, col0 + begin, end - begin};
}

// Where the outputs of one row stand in a gather slot; each pointer as if it pointed to column 0 of the row.
struct GatheredRow {
  char* reduced;
  char* residual;
  char* norm;
  char* quant;
  char* scale;
};

class Cutter {
 public:
  Cutter(const World& world, const Call& call, size_t elementBytes)
      : a_(call.rows),
        ranks_(world.ranks),
        elementBytes_(static_cast<int64_t>(elementBytes)),
        rowsPerChunk_(call.shape.rowsPerChunk),
        colsPerChunk_(smaller(call.shape.colsPerChunk, call.rows.cols)),
        rowStride_(roundUpTo64(colsPerChunk_ * elementBytes_)) {}

  // Bytes from a row to the next in a slot. Rows start at cache lines, so that a row's last register may be stored
  // whole.
  int64_t rowStride() const { return rowStride_; }

  // ---- Every rank takes every chunk.
  int64_t chunks() const {
    if (colsPerChunk_ < a_.cols) return a_.rows * chunksOfRow();
    return (a_.rows + rowsPerChunk_ - 1) / rowsPerChunk_;
  }
  Chunk chunk(int64_t i) const {
    if (colsPerChunk_ < a_.cols) {
      const int64_t col0 = i % chunksOfRow() * colsPerChunk_;
      return Chunk{i / chunksOfRow(), 1, col0, smaller(colsPerChunk_, a_.cols - col0)};
    }
    const int64_t row0 = i * rowsPerChunk_;
    return Chunk{row0, smaller(rowsPerChunk_, a_.rows - row0), 0, a_.cols};
  }

  // ---- Every chunk is shared out among owners. After sharedChunks() has been called.
  int64_t sharedChunks() {
    shared_ = true;
    if (flat()) return chunksOfRow();
    const int64_t most = (a_.rows + ranks_ - 1) / ranks_;
    return (most + rowsPerChunk_ - 1) / rowsPerChunk_;
  }
  bool shared() const { return shared_; }
  Chunk part(int64_t i, int owner) const {
    if (flat()) {
      const int64_t col0 = i * colsPerChunk_;
      return shardOf(col0, smaller(colsPerChunk_, a_.cols - col0), ranks_, owner);
    }
    const RowRange own = ownRows(a_.rows, ranks_, owner);
    const int64_t end = own.first + own.count;
    const int64_t row0 = smaller(own.first + i * rowsPerChunk_, end);
    return Chunk{row0, smaller(rowsPerChunk_, end - row0), 0, a_.cols};
  }
  // The most of a chunk that one owner has: so many rows of so many columns.
  int64_t ownerRows() const { return rowsPerChunk_; }
  int64_t ownerCols() const { return flat() ? roundUpTo64((colsPerChunk_ + ranks_ - 1) / ranks_) : a_.cols; }
  // Bytes of a reduce slot that belong to one owner.
  int64_t ownerBytes() const { return flat() ? ownerCols() * elementBytes_ : rowsPerChunk_ * rowStride_; }
  GatheredRow gathered(char* slot, const Chunk& part, int64_t r) const {
    GatheredRow row{};
    const auto section = [&](char*& at, bool present, int64_t stride) {
      if (!present) return;
      at = slot + r * stride - part.col0 * elementBytes_;
      slot += rowsPerChunk_ * stride;
    };
    section(row.reduced, a_.reducedOut != nullptr, rowStride_);
    section(row.residual, a_.residualOut != nullptr && !a_.residualSharded, rowStride_);
    section(row.norm, a_.normOut != nullptr, rowStride_);
    section(row.quant, a_.quant != QuantKind::kNone, roundUpTo64(a_.quant == QuantKind::kFp8 ? a_.cols : a_.cols / 2));
    section(row.scale, a_.quant == QuantKind::kNvfp4, roundUpTo64(a_.cols / kNvfp4Block));
    return row;
  }

 private:
  // A plain call: one long row, cut by columns.
  bool flat() const { return a_.rows == 1 && a_.weight == nullptr; }
  int64_t chunksOfRow() const { return (a_.cols + colsPerChunk_ - 1) / colsPerChunk_; }

  const RowArgs& a_;
  int ranks_;
  int64_t elementBytes_;
  int64_t rowsPerChunk_;
  int64_t colsPerChunk_;
  int64_t rowStride_;
  bool shared_ = false;
};

}  // namespace
}  // namespace fccl::host
