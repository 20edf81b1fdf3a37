#include "tests/perf/buffers.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "tests/perf/epilogue_loops.h"
#include "tests/perf/ranks.h"

namespace fccl::perf {
namespace {

constexpr size_t kPage = 4096;

uint64_t hashOf(uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// `value` must be exact in the type.
void putElement(fcclDataType_t dtype, void* out, size_t index, double value) {
  const auto put = [&](auto typed) {
    std::memcpy(static_cast<char*>(out) + index * sizeof(typed), &typed, sizeof(typed));
  };
  const auto integer = static_cast<int64_t>(value);
  const auto single = static_cast<float>(value);
  switch (dtype) {
    case fcclInt8:
    case fcclUint8: put(static_cast<uint8_t>(integer)); break;
    case fcclInt32:
    case fcclUint32: put(static_cast<uint32_t>(integer)); break;
    case fcclInt64:
    case fcclUint64: put(static_cast<uint64_t>(integer)); break;
    case fcclFloat32: put(single); break;
    case fcclFloat64: put(value); break;
    case fcclFloat16:
    case fcclBfloat16:
      epilogueLoops().narrow(dtype, &single, 1.0f, static_cast<char*>(out) + index * sizeof(uint16_t), 1);
      break;
  }
}

double valueOf(fcclDataType_t dtype, fcclRedOp_t op, int rank, size_t index) {
  const uint64_t hash = hashOf(static_cast<uint64_t>(rank) * 1000003 + index);
  const bool real = isSixteenBit(dtype) || dtype == fcclFloat32 || dtype == fcclFloat64;
  if (op == fcclProd && rank > 0) return (hash & 1) != 0 ? -1.0 : 1.0;
  if (real) return (static_cast<double>(hash % 128) - 64.0) / 32.0;
  // Few enough to wrap around nowhere: sums of 8 bits saturate in some builds of MPI.
  const bool isSigned = dtype == fcclInt8 || dtype == fcclInt32 || dtype == fcclInt64;
  return isSigned ? static_cast<double>(hash % 7) - 3.0 : static_cast<double>(hash % 4);
}

}  // namespace

Producer::Producer(fcclDataType_t dtype, fcclRedOp_t op, int rank)
    : elementBytes_(bytesOf(dtype)), tile_(2 * kBlockBytes) {
  for (size_t i = 0; i < tile_.size() / elementBytes_; i++)
    putElement(dtype, tile_.data(), i, valueOf(dtype, op, rank, i));
}

void Producer::produce(void* out, size_t count, uint64_t call) const {
  const size_t bytes = count * elementBytes_;
  size_t block = 0;
  for (size_t done = 0; done < bytes; done += kBlockBytes, block++) {
    const size_t place = (block * 37 + (block / 64) * 11 + call * 5) % 64;
    std::memcpy(static_cast<char*>(out) + done, tile_.data() + place * (kBlockBytes / 64),
                std::min(kBlockBytes, bytes - done));
  }
}

void fillResidual(fcclDataType_t dtype, void* out, size_t count) {
  for (size_t i = 0; i < count; i++) {
    putElement(dtype, out, i, (static_cast<double>(hashOf(i + 0x5151515151U) % 128) - 64.0) / 32.0);
  }
}

void fillWeight(fcclDataType_t dtype, void* out, size_t count) {
  for (size_t i = 0; i < count; i++) {
    putElement(dtype, out, i, 0.5 + static_cast<double>(hashOf(i + 0x7777777777U) % 128) / 128.0);
  }
}

Buffers::Buffers(const Case& c, bool inPlace, MemoryKind kind, fcclComm_t comm, size_t stagingBytes)
    : comm_(comm), kind_(kind) {
  const PatternTraits traits = traitsOf(c.pattern);
  const size_t elements = c.bytes();
  size_t total = 0;
  int number = 0;
  // Each buffer begins at another place of its page, so that loads and stores of two of them do not alias.
  const auto reserve = [&](size_t bytes) {
    const size_t offset = (total + kPage - 1) / kPage * kPage + static_cast<size_t>(number++ % 16) * 256;
    total = offset + bytes;
    return offset;
  };
  const size_t inputAt = reserve(elements);
  const size_t outputAt = inPlace ? inputAt : reserve(elements);
  const size_t residualAt = traits.residual ? reserve(elements) : 0;
  const size_t residualOutAt = traits.residual && !inPlace ? reserve(elements) : residualAt;
  const size_t weightAt = traits.norm ? reserve(static_cast<size_t>(c.hidden) * bytesOf(c.dtype)) : 0;
  const size_t normAt = traits.normOut && !inPlace ? reserve(elements) : inputAt;
  const size_t quantAt = traits.fp8 || traits.nvfp4 ? reserve(c.count()) : 0;
  scaleBytes = traits.nvfp4 ? perf::scaleBytes(fcclScaleSwizzled128x4, c.tokens, c.hidden / 16) : 0;
  const size_t scaleAt = reserve(scaleBytes);
  const size_t stagingAt = reserve(stagingBytes);
  total = (total + kPage - 1) / kPage * kPage;

  if (kind == MemoryKind::kWindow) {
    require(fcclMemAllocOn(&block_, total, fcclDeviceHost), "fcclMemAlloc", nullptr);
    require(fcclCommWindowRegister(comm, block_, total, &window_, 0), "fcclCommWindowRegister", comm);
  } else {
    block_ = std::aligned_alloc(kPage, total);
    if (block_ == nullptr) throw std::bad_alloc();
  }
  std::memset(block_, 0, total);
  char* base = static_cast<char*>(block_);
  input = base + inputAt;
  output = base + outputAt;
  if (traits.residual) {
    residual = base + residualAt;
    residualOut = base + residualOutAt;
    fillResidual(c.dtype, residual, c.count());
  }
  if (traits.norm) {
    weight = base + weightAt;
    fillWeight(c.dtype, weight, static_cast<size_t>(c.hidden));
  }
  if (traits.normOut) normOut = base + normAt;
  if (traits.fp8 || traits.nvfp4) quantOut = reinterpret_cast<uint8_t*>(base + quantAt);
  if (traits.nvfp4) scaleOut = reinterpret_cast<uint8_t*>(base + scaleAt);
  if (stagingBytes > 0) staging = base + stagingAt;
}

Buffers::~Buffers() {
  if (kind_ == MemoryKind::kPlain) {
    std::free(block_);
    return;
  }
  // A failure here cannot be acted on any more: the communicator is in error already, and that was reported.
  if (window_ != nullptr) fcclCommWindowDeregister(comm_, window_);
  fcclMemFree(block_);
}

}  // namespace fccl::perf
