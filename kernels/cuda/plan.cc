// Which kernel a call takes, and with what launch shape. The shapes are those that won on one H200
// (docs/performance.md).
#include <algorithm>
#include <vector>

#include "kernels/cuda/layout.h"

namespace fccl::cuda {
namespace {

// Exactly two ranks, three to eight, or any number (one too).
int unrolledSources(int ranks) { return ranks == 2 ? 1 : ranks > 2 && ranks <= 8 ? 7 : 0; }

// A row over the blocks of a cluster, one pack per thread: 128 threads each while 8 blocks suffice.
Layout clusterLayout(Form form, int64_t packs, int architecture, int wish = 0) {
  form.cluster = true;
  form.packs = 1;
  Layout layout{form};
  layout.allAtOnce = form.once;
  const int64_t blocks = wish != 0 ? wish : divideUp(packs, 128);
  // Two at least: see RowSum.
  layout.cluster = architecture >= 90 ? static_cast<int>(std::clamp<int64_t>(blocks, 2, kMaxCluster)) : 1;
  layout.threads = wholeWarps(divideUp(packs, layout.cluster));
  return layout;
}

// A row in one block, `packs` per thread.
Layout rowLayout(Form form, int64_t rowPacks, int packs) {
  form.packs = packs;
  form.lookAhead = form.protocol == Protocol::kOneshot && !form.once;
  return {form, wholeWarps(divideUp(rowPacks, packs)), 1, form.once};
}

// Rows up to which a row is spread over a cluster of small blocks, and over one of larger blocks. A rank that has its
// GPU to itself has room for more small blocks.
constexpr int64_t kSmallBlockRows = 16;
constexpr int64_t kSmallBlockRowsAlone = 64;
constexpr int64_t kClusterRows = 48;

// Up to so many rows the padding of scales gets so many blocks or clusters of its own.
constexpr int64_t kPaddingRows = 4;
constexpr int64_t kPaddingTeams = 4;

// In order of preference; the first that exists and fits is taken.
std::vector<Layout> normLayouts(const Shape& shape, const DeviceFacts& facts, const ShapeWish& wish, int ranks) {
  const int64_t packs = packsPerRow(shape);
  const int arch = facts.architecture;
  Form any;
  any.protocol = shape.protocol;
  any.norm = true;
  any.nvfp4 = shape.quant == QuantKind::kNvfp4;
  any.aligned = shape.aligned;
  any.sharded = shape.sharded;
  if (shape.protocol != Protocol::kOneshot) return {rowLayout(any, packs, 4)};
  if (!shape.aligned) return {clusterLayout(any, packs, arch)};

  Form form = any;
  form.sources = unrolledSources(ranks);
  Form once = form;
  once.once = form.sources != 0;
  std::vector<Layout> layouts;
  Form ahead = form;
  ahead.lookAhead = true;
  if (wish.packsPerThread == 1) {
    layouts.push_back(clusterLayout(wish.loops ? ahead : once, packs, arch, wish.cluster));
  }
  if (wish.packsPerThread > 1 && !wish.loops) layouts.push_back(rowLayout(once, packs, wish.packsPerThread));
  if (wish.packsPerThread > 1) layouts.push_back(rowLayout(form, packs, wish.packsPerThread));
  const int64_t smallBlockRows = facts.ranksOnDevice == 1 ? kSmallBlockRowsAlone : kSmallBlockRows;
  if (shape.rows <= smallBlockRows) layouts.push_back(clusterLayout(once, packs, arch));
  if (shape.rows <= kClusterRows) {
    layouts.push_back(clusterLayout(once, packs, arch, static_cast<int>(divideUp(packs, 512))));
  }
  layouts.push_back(rowLayout(once, packs, 2));
  // Small steps keep the links busy and end soon after the last row has come; two ranks, a GPU each: 512 rows 31.5 to
  // 28.7 us, with NVFP4 35.8 to 30.0. Where all rows are under way at once only NVFP4 gains. Ranks that share a GPU
  // have no room for it.
  if (facts.ranksOnDevice == 1 && arch >= 90) {
    if (!form.nvfp4) {
      layouts.push_back(rowLayout(form, packs, 2));
      layouts.back().allAtOnce = true;
    }
    layouts.push_back(clusterLayout(ahead, packs, arch));
  }
  layouts.push_back(rowLayout(form, packs, 2));
  layouts.push_back(rowLayout(form, packs, 4));
  layouts.push_back(clusterLayout(any, packs, arch));
  return layouts;
}

// Packs of a call without norm from which on a thread takes two, in blocks of 512 threads, and four, where ranks share
// a GPU. One that a rank has to itself keeps its links busiest with one (4 MiB 14.8 to 13.8 us).
constexpr int64_t kPlainTwoPacks = 32 << 10;
constexpr int64_t kPlainFourPacks = 192 << 10;

std::vector<Layout> plainLayouts(const Shape& shape, const DeviceFacts& facts, const ShapeWish& wish, int ranks) {
  Form form;
  form.protocol = shape.protocol;
  form.aligned = shape.aligned;
  const int threads = wish.threads != 0 ? wish.threads : 256;
  if (shape.protocol != Protocol::kOneshot) {
    form.packs = 2;
    return {{form, threads}};
  }
  if (!shape.aligned) return {{form, threads}};
  form.sources = unrolledSources(ranks);
  Form once = form;
  once.once = form.sources != 0;
  std::vector<Layout> layouts;
  const auto add = [&](Form f, int packs) {
    f.packs = packs;
    f.lookAhead = packs > 1 && !f.once;
    layouts.push_back({f, threads, 1, f.once});
  };
  if (wish.packsPerThread != 0) {
    if (!wish.loops) add(once, wish.packsPerThread);
    add(form, wish.packsPerThread);
  }
  const int64_t packs = packsPerRow(shape);
  const bool shared = facts.ranksOnDevice > 1;
  if (shared && packs >= kPlainFourPacks) add(form, 4);
  if (shared && packs >= kPlainTwoPacks) {
    add(once, 2);
    layouts.back().threads = wish.threads != 0 ? wish.threads : 512;
  }
  add(once, 1);
  add(form, 1);
  return layouts;
}

// Rows, without norm columns, whose slots the epochs hold.
int64_t rowsThatFit(const Shape& shape, const CudaWorld& world) {
  const size_t bytes = elementBytes(shape.dtype);
  const int64_t all = shape.norm ? shape.rows : shape.cols;
  const auto fits = [&](int64_t n) {
    if (shape.sharded) return shardedEpochBytes(world.ranks, n, shape.cols, bytes) <= world.epochBytes;
    return (shape.norm ? epochBytes(shape.protocol, world.ranks, n, shape.cols, bytes)
                       : epochBytes(shape.protocol, world.ranks, 1, n, bytes)) <= world.epochBytes;
  };
  if (fits(all)) return all;
  int64_t low = 0;
  int64_t high = all;
  while (low + 1 < high) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  if (shape.sharded) return low / world.ranks * world.ranks;
  // Parts begin where packs begin, whatever the data type.
  return shape.norm ? low : low / 64 * 64;
}

// What there is to do at once: rows, or blocks of packs.
int64_t pieces(const Shape& shape, const Layout& layout, int64_t rowsPerLaunch, int ranks) {
  int64_t work = rowsPerLaunch;
  if (!shape.norm) {
    const int64_t perBlock = static_cast<int64_t>(layout.form.packs) * layout.threads * 16;
    work = divideUp(work * static_cast<int64_t>(elementBytes(shape.dtype)), perBlock);
  }
  return shape.protocol != Protocol::kOneshot ? divideUp(work, ranks) : work;
}

}  // namespace

// What one rank may have of the blocks, or clusters, that fit on its device together. While ranks wait, the one that
// they wait for may still have other kernels to run on the same device, so all but one take half of it at most. What is
// left over from blocks of all ranks is not enough: 13 warps of 112 registers on every multiprocessor of an H200 kept
// out a kernel of 256 threads, for ever.
static int shareOf(int all, int ranksOnDevice) {
  if (ranksOnDevice == 1) return all;
  const int share = all / (2 * (ranksOnDevice - 1));
  return share == 0 && all >= ranksOnDevice ? 1 : share;
}

// Kernels for older architectures stage nothing.
static int sharedBytes(const Layout& layout, const DeviceFacts& facts) {
  return facts.architecture >= 90 ? stageBytes(layout.form, layout.threads) : 0;
}

cudaError_t blocksOfOneRank(const void* kernel, const Layout& layout, const DeviceFacts& facts, int* blocks) {
  if (!layout.form.cluster || layout.cluster == 1 || facts.architecture < 90) {
    int perMultiprocessor = 0;
    const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &perMultiprocessor, kernel, layout.threads, static_cast<size_t>(sharedBytes(layout, facts)));
    *blocks = shareOf(perMultiprocessor * facts.multiprocessors, facts.ranksOnDevice);
    return error;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(layout.cluster));
  config.blockDim = dim3(static_cast<unsigned>(layout.threads));
  config.dynamicSmemBytes = static_cast<size_t>(sharedBytes(layout, facts));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(layout.cluster), 1, 1};
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  const cudaError_t error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
  *blocks = shareOf(clusters * 3 / 4, facts.ranksOnDevice) * layout.cluster;
  return error;
}

cudaError_t readDeviceFacts(int device, DeviceFacts* facts) {
  int major = 0;
  int minor = 0;
  cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&facts->multiprocessors, cudaDevAttrMultiProcessorCount, device);
  }
  if (error != cudaSuccess) return error;
  // Code for an older architecture, which the driver translates, has no clusters, whatever the device has.
  cudaFuncAttributes attributes;
  error = cudaFuncGetAttributes(&attributes, findKernel(fcclBfloat16, kClusterForms[0]));
  if (error == cudaSuccess) facts->architecture = std::min(major * 10 + minor, attributes.ptxVersion);
  return error;
}

Shape shapeOf(Protocol protocol, fcclDataType_t dtype, const RowArgs& rows) {
  const bool norm = rows.weight != nullptr;
  return {protocol, dtype,      norm ? rows.rows : 1,      norm ? rows.cols : rows.rows * rows.cols,
          norm,     rows.quant, packsAligned(rows, dtype), rows.residualSharded};
}

cudaError_t plan(const DeviceFacts& facts, const CudaWorld& world, const Shape& shape, const ShapeWish& wish,
                 Launch* launch, const char** reason) {
  *launch = Launch();
  *reason = nullptr;
  launch->rowsPerLaunch = rowsThatFit(shape, world);
  if (launch->rowsPerLaunch <= 0) {
    *reason = "one row exceeds the workspace";
    return cudaSuccess;
  }
  launch->programmatic = facts.programmatic && facts.architecture >= 90;
  launch->remoteDomain = facts.remoteDomain && facts.architecture >= 90;
  for (const Layout& layout :
       shape.norm ? normLayouts(shape, facts, wish, world.ranks) : plainLayouts(shape, facts, wish, world.ranks)) {
    const void* kernel = findKernel(shape.dtype, layout.form);
    if (kernel == nullptr || layout.threads > layout.form.maxThreads()) continue;
    int most = 0;
    const cudaError_t error = blocksOfOneRank(kernel, layout, facts, &most);
    if (error != cudaSuccess) return error;
    const int64_t work = pieces(shape, layout, launch->rowsPerLaunch, world.ranks);
    const int64_t teams = most / layout.cluster;
    if (teams == 0 || (layout.allAtOnce && work > teams)) continue;
    // As many rows for each block, as far as that goes.
    const int64_t even = divideUp(work, divideUp(work, teams));
    const int64_t wanted = wish.blocks != 0 && !layout.form.once ? wish.blocks : even;
    launch->kernel = kernel;
    launch->threads = layout.threads;
    launch->sharedBytes = sharedBytes(layout, facts);
    launch->cluster = layout.form.cluster && facts.architecture >= 90 ? layout.cluster : 0;
    launch->blocks = static_cast<int>(std::clamp<int64_t>(wanted, 1, teams)) * layout.cluster;
    // Few rows leave many scales as padding; blocks of their own zero it beside the rows.
    if (layout.form.once && layout.form.nvfp4 && work <= kPaddingRows) {
      launch->blocks += static_cast<int>(std::min(teams - work, kPaddingTeams)) * layout.cluster;
    }
    return cudaSuccess;
  }
  *reason = shape.sharded ? "residualSharded takes rows of at most 32 KiB"
                          : "a row is longer than the kernels take (64 Ki columns of 16 bits, 32 Ki of fp32)";
  return cudaSuccess;
}

CudaWorld epilogueWorld(DeviceState* state, HostWords* words) {
  CudaWorld world{};
  world.ranks = 1;
  world.epochBytes = uint64_t{1} << 30;  // nothing stands there; as much as a launch may have
  world.state = state;
  world.hostWords = words;
  return world;
}

// A block for each row, and some for the padding of scales: that of one row is 64 KiB, with 8192 columns. With four
// packs per thread NVFP4 takes fewer instructions, but more time where few rows follow each other on a multiprocessor:
// 4096 rows 65 to 62 us, 1024 rows 19.6 to 21.9. Without NVFP4 four are slower throughout, one is no faster.
static bool planLocal(const DeviceFacts& facts, const CudaWorld& world, const Shape& shape, const ShapeWish& wish,
                      Launch* launch) {
  constexpr int64_t kFourPackRows = 4096;
  constexpr int kPaddingBlocks = 8;
  Form form;
  form.norm = true;
  form.nvfp4 = shape.quant == QuantKind::kNvfp4;
  form.local = true;
  form.packs = form.nvfp4 && shape.rows >= kFourPackRows ? 4 : 2;
  if (wish.packsPerThread != 0) form.packs = wish.packsPerThread;
  form.once = form.packs <= 2;
  const int64_t packs = packsPerRow(shape);
  if (!shape.norm || !shape.aligned || divideUp(packs, form.packs) > form.maxThreads()) return false;
  launch->kernel = findKernel(shape.dtype, form);
  launch->threads = wholeWarps(divideUp(packs, form.packs));
  launch->rowsPerLaunch = rowsThatFit(shape, world);
  launch->blocks = static_cast<int>(std::min(shape.rows, launch->rowsPerLaunch)) + (form.nvfp4 ? kPaddingBlocks : 0);
  launch->programmatic = facts.programmatic && facts.architecture >= 90;
  return launch->kernel != nullptr;
}

cudaError_t planEpilogue(const DeviceFacts& facts, const CudaWorld& world, const Shape& shape, const ShapeWish& wish,
                         Launch* launch, const char** reason) {
  *launch = Launch();
  *reason = nullptr;
  if (planLocal(facts, world, shape, wish, launch)) return cudaSuccess;
  DeviceFacts alone = facts;
  alone.ranksOnDevice = 1;  // it waits for nobody, so it needs no room beside others
  alone.remoteDomain = false;
  return plan(alone, world, shape, wish, launch, reason);
}

}  // namespace fccl::cuda
