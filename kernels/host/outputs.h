// Where the outputs of a row go: to the caller; to the caller and the peers; to everybody's window.
#pragma once

#include "kernels/formats.h"
#include "kernels/host/cutter.h"
#include "kernels/host/packs.h"

namespace fccl::host {
namespace {

FCCL_TEAM_FN char* rowStart(void* base, int64_t row, int64_t rowBytes) {
  return base == nullptr ? nullptr : static_cast<char*>(base) + row * rowBytes;
}

// Bytes of a row of quantOut.
FCCL_TEAM_FN int64_t quantRowBytes(const RowArgs& a) { return a.quant == QuantKind::kFp8 ? a.cols : a.cols / 2; }

// What is known of a call when its kernel is compiled, so that the inner loops need not look.
enum class Known {
  kNothing,
  kPlain,                // reducedOut and nothing else; nothing past the caches
  kPlainStreamed,        // the same, staging past the caches
  kResidualNorm,         // the pattern of most layers: residualOut and normOut, weights of the data's own type, no
                         // reducedOut; nothing past the caches
  kResidualNormStreamed  // the same, staging and outputs past the caches
};
constexpr bool isPlain(Known known) { return known == Known::kPlain || known == Known::kPlainStreamed; }
constexpr bool isResidualNorm(Known known) {
  return known == Known::kResidualNorm || known == Known::kResidualNormStreamed;
}

inline Known knownOf(const Call& call, bool norm) {
  const RowArgs& a = call.rows;
  const Shape& shape = call.shape;
  if (!norm) {
    if (shape.streamOutput) return Known::kNothing;
    return shape.streamStaging ? Known::kPlainStreamed : Known::kPlain;
  }
  const bool usual = a.residual != nullptr && a.reducedOut == nullptr && a.normOut != nullptr &&
                     a.quant == QuantKind::kNone && !a.weightIsFp32;
  if (!usual || shape.streamOutput != shape.streamStaging) return Known::kNothing;
  return shape.streamOutput ? Known::kResidualNormStreamed : Known::kResidualNorm;
}

// The caller's outputs; staged: and the gather slot (TWOSHOT, wire kFlags), from where the other ranks copy them.
template <class P, bool staged, Known known>
class RowOutputs {
 public:
  using Rounded = typename P::Rounded;

  FCCL_TEAM_FN RowOutputs(const RowArgs& a, int64_t row, const Shape& shape, const GatheredRow& slot)
      : a_(a),
        row_(row),
        reduced_(rowStart(a.reducedOut, row, a.cols * static_cast<int64_t>(P::D::kBytes))),
        residual_(rowStart(a.residualOut, row, a.cols * static_cast<int64_t>(P::D::kBytes))),
        norm_(rowStart(a.normOut, row, a.cols * static_cast<int64_t>(P::D::kBytes))),
        quant_(a.quantOut + row * quantRowBytes(a)),
        slot_(slot),
        stream_(shape.streamOutput),
        streamStaging_(shape.streamStaging) {}

  template <class Pack>
  FCCL_TEAM_FN void sum(Pack p, Rounded s) {
    if (isPlain(known) || (known == Known::kNothing && reduced_ != nullptr)) {
      put(reduced_, slot_.reduced, p, s.narrow(), streams());
    }
  }
  template <class Pack>
  FCCL_TEAM_FN void residual(Pack p, Rounded r) {
    P::store(residual_, p, r.narrow(), false);  // pass 2 reads it again
    if (staged && slot_.residual != nullptr) {
      P::store(slot_.residual, WholePack{p.index}, r.narrow(), known == Known::kNothing && streamStaging_);
    }
  }
  template <class Pack>
  FCCL_TEAM_FN void norm(Pack p, Rounded n) {
    put(norm_, slot_.norm, p, n.narrow(), streams());
  }
  // Quantized bytes are written to quantAt(offset) and then announced.
  FCCL_TEAM_FN uint8_t* quantAt(int64_t offset) { return quant_ + offset; }
  FCCL_TEAM_FN void quantWritten(int64_t offset, int bytes) {
    if (staged) __builtin_memcpy(slot_.quant + offset, quant_ + offset, static_cast<size_t>(bytes));
  }
  FCCL_TEAM_FN void scale(int64_t block, uint8_t byte) {
    a_.scaleOut[scaleOffset(a_.scaleLayout, row_, block, a_.cols / kNvfp4Block)] = byte;
    if (staged) slot_.scale[block] = static_cast<char>(byte);
  }
  FCCL_TEAM_FN RowOutputs rest() const { return *this; }

 private:
  template <class Pack>
  FCCL_TEAM_FN void put(char* user, char* slot, Pack p, typename P::Raw raw, bool stream) {
    P::store(user, p, raw, stream);
    if (staged) P::store(slot, WholePack{p.index}, raw, known == Known::kNothing && streamStaging_);
  }
  FCCL_TEAM_FN bool streams() const {
    return known == Known::kNothing ? stream_ : known == Known::kResidualNormStreamed;
  }

  const RowArgs& a_;
  int64_t row_;
  char* reduced_;
  char* residual_;
  char* norm_;
  uint8_t* quant_;
  GatheredRow slot_;
  bool stream_;
  bool streamStaging_;
};

// TWOSHOT, wire kLamport: the sum also goes to the peers, who do the epilogue themselves.
template <class P, class Send>
class PushedOutputs : public RowOutputs<P, false, Known::kNothing> {
 public:
  FCCL_TEAM_FN PushedOutputs(const RowArgs& a, int64_t row, const Shape& shape, Send& out)
      : RowOutputs<P, false, Known::kNothing>(a, row, shape, GatheredRow{}), out_(out) {}

  template <class Pack>
  FCCL_TEAM_FN void sum(Pack p, typename P::Rounded s) {
    RowOutputs<P, false, Known::kNothing>::sum(p, s);
    out_.put(p, s.narrow());
  }

 private:
  Send& out_;
};

// UB: the sum goes into every rank's output window.
template <class P>
class WindowOutputs {
 public:
  FCCL_TEAM_FN WindowOutputs(const RowArgs& a, const ptrdiff_t* deltas, int ranks, bool stream)
      : row_(static_cast<char*>(a.reducedOut)), deltas_(deltas), ranks_(ranks), stream_(stream) {}

  template <class Pack>
  FCCL_TEAM_FN void sum(Pack p, typename P::Rounded s) {
    for (int r = 0; r < ranks_; r++) P::store(row_ + deltas_[r], p, s.narrow(), stream_);
  }
  template <class Pack>
  FCCL_TEAM_FN void residual(Pack, typename P::Rounded) {}

 private:
  char* row_;
  const ptrdiff_t* deltas_;
  int ranks_;
  bool stream_;
};

// The columns of `part` of one gathered row, from a slot to the caller's outputs.
inline void copyRow(const RowArgs& a, const Chunk& part, int64_t r, size_t elementBytes, const GatheredRow& from) {
  const int64_t row = part.row0 + r;
  const auto bytes = static_cast<int64_t>(elementBytes);
  const auto copy = [](char* to, const char* source, int64_t offset, int64_t n) {
    if (to != nullptr) __builtin_memcpy(to + offset, source + offset, static_cast<size_t>(n));
  };
  copy(rowStart(a.reducedOut, row, a.cols * bytes), from.reduced, part.col0 * bytes, part.cols * bytes);
  if (!a.residualSharded) copy(rowStart(a.residualOut, row, a.cols * bytes), from.residual, 0, a.cols * bytes);
  copy(rowStart(a.normOut, row, a.cols * bytes), from.norm, 0, a.cols * bytes);
  if (a.quant != QuantKind::kNone) {
    __builtin_memcpy(a.quantOut + row * quantRowBytes(a), from.quant, static_cast<size_t>(quantRowBytes(a)));
  }
  if (a.quant == QuantKind::kNvfp4) {
    const int64_t K = a.cols / kNvfp4Block;
    for (int64_t k = 0; k < K; k++)
      a.scaleOut[scaleOffset(a.scaleLayout, row, k, K)] = static_cast<uint8_t>(from.scale[k]);
  }
}

}  // namespace
}  // namespace fccl::host
