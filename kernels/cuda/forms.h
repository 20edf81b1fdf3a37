// Which kernels exist: the facts that are compiled in. Everything else is a fact of the call.
#pragma once

#include "kernels/cuda/cuda_kernels.h"

namespace fccl::cuda {

struct Form {
  Protocol protocol = Protocol::kOneshot;
  bool norm = false;
  bool nvfp4 = false;      // else none or FP8, as the call says
  int sources = 0;         // 1: two ranks; 7: three to eight; 0: any number, in loops
  int packs = 1;           // 16-byte packs of a row per thread
  bool cluster = false;    // a row is spread over the blocks of a cluster
  bool lookAhead = false;  // row i + 1 is sent before row i is waited for
  bool once = false;       // as many blocks or clusters as rows: each takes one
  bool aligned = true;     // all rows begin at multiples of 16 bytes
  bool local = false;      // the sums are there: the epilogue alone
  bool sharded = false;    // TWOSHOT: each rank has the residual of its own rows only
  // Registers: 1024 threads may have 64 each, 512 have 128.
  constexpr int maxThreads() const { return local || (packs == 1 && sources <= 1) ? 1024 : 512; }
  // Blocks of that size per multiprocessor that registers are kept few enough for.
  constexpr int minBlocks() const { return norm && lookAhead && packs == 2 && sources <= 1 ? 2 : 1; }

  // Rows come through shared memory (row_stage.cuh), on devices with clusters, which have enough of it. Measured: NVFP4
  // computes long enough to hide the way of the next rows (-15 to -20 % from 256 rows on); the others lose 3 %.
  constexpr bool staged() const { return norm && nvfp4 && lookAhead; }

  // As a number, because nvcc takes no structure for a template argument.
  constexpr uint32_t code() const {
    const uint32_t ofProtocol = protocol == Protocol::kLowPrecision ? 128u : static_cast<uint32_t>(protocol);
    return ofProtocol | (norm ? 2u : 0u) | (nvfp4 ? 4u : 0u) | (cluster ? 8u : 0u) | (lookAhead ? 16u : 0u) |
           (aligned ? 32u : 0u) | (once ? 64u : 0u) | static_cast<uint32_t>(packs) << 8 |
           static_cast<uint32_t>(sources) << 16 | (local ? 1u << 24 : 0u) | (sharded ? 1u << 25 : 0u);
  }
  static constexpr Form of(uint32_t code) {
    return {(code & 128u) != 0 ? Protocol::kLowPrecision : static_cast<Protocol>(code & 1u),
            (code & 2u) != 0,
            (code & 4u) != 0,
            static_cast<int>(code >> 16 & 255u),
            static_cast<int>(code >> 8 & 255u),
            (code & 8u) != 0,
            (code & 16u) != 0,
            (code & 64u) != 0,
            (code & 32u) != 0,
            (code & 1u << 24) != 0,
            (code & 1u << 25) != 0};
  }
};

// What staged forms hold of a row at a time, in pieces of 16 bytes.
constexpr int kStagedInputs = 3;     // rows: one that is waited for, one just sent, one on its way
constexpr int kStagedResiduals = 2;  // rows: one in use, one on its way
constexpr int kWeightPieces = 2;     // of the fp32 weights of a pack of 8 elements
// Dynamic shared memory of a block.
constexpr int stageBytes(const Form& form, int threads) {
  return form.staged() ? threads * form.packs * (kStagedInputs + kStagedResiduals + kWeightPieces) * 16 : 0;
}

// One row per cluster, one pack per thread: few tokens, where code length is latency, and many where a rank has its GPU
// to itself and the links are to be kept busy. Those for any number of sources also take rows too long for one block.
constexpr Form kClusterForms[] = {
    {.norm = true, .sources = 1, .cluster = true, .once = true},
    {.norm = true, .sources = 7, .cluster = true, .once = true},
    {.norm = true, .sources = 1, .cluster = true, .lookAhead = true},
    {.norm = true, .sources = 0, .cluster = true},
    {.norm = true, .sources = 0, .cluster = true, .aligned = false},
    {.norm = true, .nvfp4 = true, .sources = 0, .cluster = true, .aligned = false},
    {.norm = true, .nvfp4 = true, .sources = 1, .cluster = true, .once = true},
    {.norm = true, .nvfp4 = true, .sources = 7, .cluster = true, .once = true},
    {.norm = true, .nvfp4 = true, .sources = 1, .cluster = true, .lookAhead = true},
    {.norm = true, .nvfp4 = true, .sources = 0, .cluster = true},
};

// One row per block, several packs per thread: many tokens, where bytes are time.
constexpr Form kRowForms[] = {
    {.norm = true, .sources = 1, .packs = 2, .once = true},
    {.norm = true, .sources = 1, .packs = 2, .lookAhead = true},
    {.norm = true, .sources = 1, .packs = 4, .lookAhead = true},
    {.norm = true, .sources = 7, .packs = 2, .lookAhead = true},
    {.norm = true, .sources = 0, .packs = 2, .lookAhead = true},
    {.norm = true, .nvfp4 = true, .sources = 1, .packs = 2, .once = true},
    {.norm = true, .nvfp4 = true, .sources = 1, .packs = 2, .lookAhead = true},
    {.norm = true, .nvfp4 = true, .sources = 1, .packs = 4, .lookAhead = true},
    {.norm = true, .nvfp4 = true, .sources = 7, .packs = 2, .lookAhead = true},
    {.norm = true, .nvfp4 = true, .sources = 0, .packs = 2, .lookAhead = true},
};

// Without norm a call is one run of packs, cut into a block's share.
constexpr Form kPlainForms[] = {
    {.sources = 1},
    {.sources = 1, .once = true},
    {.sources = 1, .packs = 2, .once = true},
    {.sources = 1, .packs = 4, .lookAhead = true},
    {.sources = 7},
    {.sources = 0},
    {.sources = 0, .aligned = false},
    {.protocol = Protocol::kTwoshot, .packs = 2},
    {.protocol = Protocol::kTwoshot, .packs = 2, .aligned = false},
    {.protocol = Protocol::kTwoshot, .norm = true, .packs = 4},
    {.protocol = Protocol::kTwoshot, .norm = true, .packs = 4, .aligned = false},
    {.protocol = Protocol::kTwoshot, .norm = true, .nvfp4 = true, .packs = 4},
    {.protocol = Protocol::kTwoshot, .norm = true, .nvfp4 = true, .packs = 4, .aligned = false},
};

// A residual that is sharded, for any number of ranks.
constexpr Form kShardedForms[] = {
    {.protocol = Protocol::kTwoshot, .norm = true, .packs = 4, .sharded = true},
    {.protocol = Protocol::kTwoshot, .norm = true, .packs = 4, .aligned = false, .sharded = true},
    {.protocol = Protocol::kTwoshot, .norm = true, .nvfp4 = true, .packs = 4, .sharded = true},
    {.protocol = Protocol::kTwoshot, .norm = true, .nvfp4 = true, .packs = 4, .aligned = false, .sharded = true},
};

// The epilogue of sums that NCCL has left.
constexpr Form kLocalForms[] = {
    {.norm = true, .packs = 2, .once = true, .local = true},
    {.norm = true, .nvfp4 = true, .packs = 2, .once = true, .local = true},
    {.norm = true, .nvfp4 = true, .packs = 4, .local = true},
};

// For any number of ranks, like TWOSHOT's.
constexpr Form kLowPrecisionForms[] = {
    {.protocol = Protocol::kLowPrecision, .packs = 2},
    {.protocol = Protocol::kLowPrecision, .packs = 2, .aligned = false},
    {.protocol = Protocol::kLowPrecision, .norm = true, .packs = 4},
    {.protocol = Protocol::kLowPrecision, .norm = true, .packs = 4, .aligned = false},
    {.protocol = Protocol::kLowPrecision, .norm = true, .nvfp4 = true, .packs = 4},
    {.protocol = Protocol::kLowPrecision, .norm = true, .nvfp4 = true, .packs = 4, .aligned = false},
};

// NULL: there is no such kernel.
const void* findKernel(fcclDataType_t dtype, const Form& form);

}  // namespace fccl::cuda
