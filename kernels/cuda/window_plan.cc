// Which kernel a call of user buffers takes, and with what launch shape. Ranks may come to different shapes: see
// window_team.cuh.
#include <algorithm>

#include "kernels/cuda/layout.h"
#include "kernels/cuda/window_forms.h"

namespace fccl::cuda {
namespace {

// Up to so many rows a row is spread over small blocks, else one block takes as much of it as it can.
constexpr int64_t kSpreadRows = 16;
constexpr int kSmallBlock = 128;

// The next kernel of a rank takes up to its part of the device; a peer's blocks that are yet to come find room in what
// is left, if that is some multiprocessors and they are in no clusters, which need several of them side by side.
constexpr int kRanksWithRoom = 8;

// So much of a call in one launch, as the 32-bit numbers of rows and columns allow.
constexpr int64_t kLaunchBytes = int64_t{1} << 30;

}  // namespace

cudaError_t planWindows(const DeviceFacts& facts, int ranks, const Shape& shape, const ShapeWish& wish,
                        Launch* launch) {
  *launch = Launch();
  Layout layout;
  layout.form = {.protocol = shape.protocol,
                 .norm = shape.norm,
                 .nvfp4 = shape.quant == QuantKind::kNvfp4,
                 .packs = 2,
                 .cluster = shape.norm,
                 .aligned = shape.aligned};
  const int64_t packs = packsPerRow(shape);
  const int64_t most = layout.form.maxThreads();
  if (shape.norm) {
    const bool spread = wish.cluster == 0 && shape.rows <= kSpreadRows;
    const int64_t blocks = wish.cluster != 0 ? wish.cluster : divideUp(packs, 2 * (spread ? kSmallBlock : most));
    layout.cluster = static_cast<int>(std::clamp<int64_t>(blocks, 1, facts.architecture >= 90 ? kMaxCluster : 1));
    layout.threads = wholeWarps(divideUp(packs, int64_t{2} * layout.cluster));
  } else {
    layout.threads = wish.threads != 0 ? wish.threads : static_cast<int>(most);
  }
  if (layout.threads > most) return cudaSuccess;

  const auto bytes = static_cast<int64_t>(elementBytes(shape.dtype));
  const int64_t fitting = kLaunchBytes / (shape.norm ? packs * 16 : bytes);
  launch->rowsPerLaunch = std::min(fitting, shape.norm ? shape.rows : shape.cols);
  const int64_t perBlock = int64_t{2} * layout.threads;
  const int64_t work = shape.norm ? launch->rowsPerLaunch : divideUp(divideUp(packs, ranks), perBlock);
  launch->kernel = findWindowKernel(shape.dtype, layout.form);
  int blocks = 0;
  if (const cudaError_t error = blocksOfOneRank(launch->kernel, layout, facts, &blocks); error != cudaSuccess) {
    return error;
  }
  const int64_t teams = std::max(1, blocks / layout.cluster);
  // As many rows for each block, as far as that goes.
  const int64_t even = divideUp(work, divideUp(work, teams));
  launch->threads = layout.threads;
  launch->cluster = layout.form.cluster && facts.architecture >= 90 ? layout.cluster : 0;
  launch->blocks =
      static_cast<int>(std::clamp<int64_t>(wish.blocks != 0 ? wish.blocks : even, 1, teams)) * layout.cluster;
  launch->programmatic = facts.programmatic && facts.architecture >= 90;
  launch->remoteDomain = facts.remoteDomain && facts.architecture >= 90;
  launch->nextBeginsEarly = facts.ranksOnDevice == 1 || (layout.cluster == 1 && facts.ranksOnDevice <= kRanksWithRoom);
  return cudaSuccess;
}

}  // namespace fccl::cuda
