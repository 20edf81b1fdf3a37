#include "lib/cuda_launch.h"

#include <algorithm>

#include "transport/cuda_driver.h"

namespace fccl {
namespace {

// Scale rows that stand together in a swizzled layout; 1 where rows stand alone.
int64_t tileRows(const RowArgs& rows) {
  if (rows.quant != QuantKind::kNvfp4) return 1;
  if (rows.scaleLayout == fcclScaleSwizzled128x4) return 128;
  return rows.scaleLayout == fcclScaleSwizzled8x4 ? 8 : 1;
}

// NULL stays NULL.
template <class T>
T* moved(T* pointer, size_t bytes) {
  return pointer == nullptr ? nullptr : reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(pointer) + bytes);
}

struct Launcher {
  const cuda::CudaWorld& world;
  const CheckedCall& call;
  cuda::Protocol protocol;
  cuda::LaunchShape shape;
  size_t elementBytes;

  // `rows` in parts that the staging areas hold.
  Status run(const RowArgs& rows) const {
    const int64_t fit = rowsThatFit(world, rows.cols, elementBytes);
    const int64_t tile = tileRows(rows);
    const int64_t step = rows.rows <= fit ? rows.rows : fit / tile * tile;
    if (step == 0) {
      return failure(fcclInvalidArgument,
                     "{} rows of {} columns do not fit a staging area of {} bytes together, and must, {}; set "
                     "cudaWorkspaceBytes (FCCL_CUDA_WORKSPACE_BYTES) to {} or more.",
                     std::min(tile, rows.rows), rows.cols, world.epochBytes,
                     tile > 1 ? "since their scales stand in one tile" : "being one row",
                     cuda::epochBytes(world.ranks, std::min(tile, rows.rows), rows.cols, elementBytes));
    }
    for (int64_t first = 0; first < rows.rows; first += step) {
      const RowArgs part = partOf(rows, first, std::min(step, rows.rows - first), elementBytes);
      FCCL_CUDA(cuda::launch(protocol, call.call.dtype, world, part, shape, call.stream));
    }
    return {};
  }
};

}  // namespace

int64_t rowsThatFit(const cuda::CudaWorld& world, int64_t cols, size_t elementBytes) {
  return static_cast<int64_t>(world.epochBytes / cuda::epochBytes(world.ranks, 1, cols, elementBytes));
}

RowArgs partOf(const RowArgs& all, int64_t first, int64_t rows, size_t elementBytes) {
  RowArgs part = all;
  part.rows = rows;
  const size_t elements = static_cast<size_t>(first) * static_cast<size_t>(all.cols);
  const size_t bytes = elements * elementBytes;
  part.input = moved(part.input, bytes);
  part.residual = moved(part.residual, bytes);
  part.reducedOut = moved(part.reducedOut, bytes);
  part.residualOut = moved(part.residualOut, bytes);
  part.normOut = moved(part.normOut, bytes);
  part.quantOut = moved(part.quantOut, all.quant == QuantKind::kNvfp4 ? elements / 2 : elements);
  if (all.quant == QuantKind::kNvfp4) {
    const auto blocks = static_cast<size_t>(all.cols / kNvfp4Block);
    const size_t perRow = all.scaleLayout == fcclScaleLinear ? blocks : (blocks + 3) / 4 * 4;
    part.scaleOut = moved(part.scaleOut, static_cast<size_t>(first) * perRow);
  }
  return part;
}

Status enqueue(const cuda::CudaWorld& world, const CheckedCall& call, const Plan& plan) {
  const size_t elementBytes = host::dtypeBytes(call.call.dtype);
  const cuda::Protocol protocol =
      plan.protocol == host::Protocol::kTwoshot ? cuda::Protocol::kTwoshot : cuda::Protocol::kOneshot;
  const Launcher launcher{world, call, protocol, {plan.blocks, plan.threads}, elementBytes};
  const RowArgs& rows = call.call.rows;
  if (call.norm()) return launcher.run(rows);

  // Any number of elements: whole rows of the planned length, and what is left as one row.
  RowArgs whole = rows;
  whole.cols = std::min(plan.columns, rows.cols);
  whole.rows = rows.cols / whole.cols;
  FCCL_TRY(launcher.run(whole));
  const int64_t done = whole.rows * whole.cols;
  if (done == rows.cols) return {};
  RowArgs rest = partOf(whole, whole.rows, 1, elementBytes);
  rest.cols = rows.cols - done;
  return launcher.run(rest);
}

}  // namespace fccl
