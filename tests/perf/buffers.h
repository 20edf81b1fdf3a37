// The buffers of one variant of a case, and the data in them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "fccl.h"
#include "tests/perf/cases.h"

namespace fccl::perf {

// Writes a rank's input before every call, as the GEMM before would: from a tile that stays in L1, so that the cost is
// that of writing. Values depend on rank, position and call, so that swapped shards and stale data are seen. They are
// multiples of 1/32 in [-2, 2) (integers and products: small numbers), so that sums are exact in fp32 and the
// reference needs no tolerance for the order of additions.
class Producer {
 public:
  Producer(fcclDataType_t dtype, fcclRedOp_t op, int rank);
  void produce(void* out, size_t count, uint64_t call) const;

 private:
  static constexpr size_t kBlockBytes = 4096;
  size_t elementBytes_;
  std::vector<unsigned char> tile_;  // two blocks: a block is copied from any of 64 places in it
};

// Values of D from a seed, the same on every rank: residual (multiples of 1/32 in [-2, 2)) and weight ([0.5, 1.5)).
void fillResidual(fcclDataType_t dtype, void* out, size_t count);
void fillWeight(fcclDataType_t dtype, void* out, size_t count);

enum class MemoryKind { kPlain, kWindow };

// One block that holds all buffers of a variant; collective with kWindow, which registers the block as one window.
class Buffers {
 public:
  // `staging`: bytes for `staging`, what a peer needs on top.
  Buffers(const Case& c, bool inPlace, MemoryKind kind, fcclComm_t comm, size_t staging);
  ~Buffers();
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  // Buffers that the pattern does not use are null.
  void* input = nullptr;
  void* output = nullptr;  // of the all-reduce alone: its result, or the sum before a separate epilogue
  void* residual = nullptr;
  void* weight = nullptr;
  void* residualOut = nullptr;
  void* normOut = nullptr;
  uint8_t* quantOut = nullptr;
  uint8_t* scaleOut = nullptr;
  void* staging = nullptr;
  size_t scaleBytes = 0;
  const float fp8DequantScale = 1.0f / 64;
  const float nvfp4GlobalScale = 336.0f;

 private:
  fcclComm_t comm_ = nullptr;
  void* block_ = nullptr;
  MemoryKind kind_;
  fcclWindow_t window_ = nullptr;
};

}  // namespace fccl::perf
