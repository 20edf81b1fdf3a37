// What a collective kernel is told about one call: plain data, the same for CUDA and HOST.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fccl {

enum class QuantKind : uint8_t { kNone, kFp8, kNvfp4 };

// One row-wise fused call. Everything optional is NULL where the pattern has none. A plain all-reduce is one row with
// `cols` elements, all but `input` and `reducedOut` NULL.
struct RowArgs {
  const void* input = nullptr;        // [rows, cols]
  const void* residual = nullptr;     // [rows, cols]; see residualSharded
  const void* weight = nullptr;       // [cols], NULL: no norm
  void* reducedOut = nullptr;         // [rows, cols]
  void* residualOut = nullptr;        // [rows, cols]
  void* normOut = nullptr;            // [rows, cols]
  uint8_t* quantOut = nullptr;        // [rows, cols] (FP8) or [rows, cols / 2] (NVFP4)
  uint8_t* scaleOut = nullptr;        // NVFP4 block scales
  const float* quantScale = nullptr;  // fp8DequantScale or nvfp4GlobalScale
  int64_t rows = 0;
  int64_t cols = 0;
  // Where the rows stand in the scales of a call that is carried out in parts (CUDA): part of `allRows`, from firstRow.
  int64_t firstRow = 0;
  int64_t allRows = 0;
  float eps = 0;
  float weightBias = 0;
  bool weightIsFp32 = false;  // else of the data's own type
  bool inputPushed = false;   // CUDA, ONESHOT: the peers have it already, in the slots of this call
  // TWOSHOT: of residual and residualOut only this rank's own rows (ownRows()) are there, at the addresses that they
  // would have among all rows.
  bool residualSharded = false;
  // CUDA, residualSharded: the launch takes of every rank's own rows `ownCount` from its ownFirst-th on.
  int64_t ownFirst = 0;
  int64_t ownCount = 0;
  QuantKind quant = QuantKind::kNone;
  uint8_t scaleLayout = 0;  // fcclScaleLayout_t
};

// Columns that share one NVFP4 scale.
constexpr int kNvfp4Block = 16;

// The rows that TWOSHOT gives a rank: contiguous, the first rows % ranks ranks have one more.
struct RowRange {
  int64_t first;
  int64_t count;
};
constexpr RowRange ownRows(int64_t rows, int ranks, int rank) {
  const int64_t each = rows / ranks;
  const int64_t extra = rows % ranks;
  return {rank * each + (rank < extra ? rank : extra), each + (rank < extra ? 1 : 0)};
}

}  // namespace fccl
