// The kernels of one SIMD target for sums of fp32, fp16 and bf16: protocol texts instantiated for the host team.
#pragma once

#include "kernels/host/team.h"
#include "kernels/oneshot.h"
#include "kernels/twoshot.h"
#include "kernels/user_buffer.h"

namespace fccl::host {
namespace {

// What Known::kPlain and Known::kResidualNorm say of the pattern.
template <bool norm>
struct UsualPattern {
  static constexpr bool kNorm = norm;
  static constexpr bool kMayAddResidual = norm;
  static constexpr bool residual(const RowArgs&) { return norm; }
  static constexpr bool normOut(const RowArgs&) { return norm; }
  static constexpr QuantKind quant(const RowArgs&) { return QuantKind::kNone; }
};

template <class Team, Protocol protocol, class Pattern>
void runTeam(World& world, const Call& call) {
  Team team(world, call);
  if constexpr (protocol == Protocol::kOneshot) oneshot<Pattern>(team, call.rows);
  if constexpr (protocol == Protocol::kTwoshot) twoshot<Pattern>(team, call.rows);
  if constexpr (protocol == Protocol::kWindowOneshot) userBufferOneshot<Pattern>(team, call.rows);
  if constexpr (protocol == Protocol::kWindowTwoshot) userBufferTwoshot<Pattern>(team, call.rows);
}

template <class D, class Isa, Wire wire, int ranks, Protocol protocol, bool norm>
void runKernel(World& world, const Call& call) {
  // Kernels of their own for the usual patterns, where two ranks have them at all.
  constexpr bool kOneshot = protocol == Protocol::kOneshot;
  constexpr bool kTwoshot = protocol == Protocol::kTwoshot && wire == Wire::kFlags;
  if constexpr (ranks == 2 && (kOneshot || kTwoshot)) {
    constexpr Known kUsual = norm ? Known::kResidualNorm : Known::kPlain;
    constexpr Known kStreamed = norm ? Known::kResidualNormStreamed : Known::kPlainStreamed;
    using Pattern = UsualPattern<norm>;
    const Known known = knownOf(call, norm);
    if (known == kUsual) return runTeam<HostTeam<D, Isa, wire, ranks, kUsual>, protocol, Pattern>(world, call);
    if constexpr (wire == Wire::kFlags && kOneshot) {
      if (known == kStreamed) return runTeam<HostTeam<D, Isa, wire, ranks, kStreamed>, protocol, Pattern>(world, call);
    }
  }
  runTeam<HostTeam<D, Isa, wire, ranks>, protocol, RuntimePattern<norm>>(world, call);
}

template <class D, class Isa, Wire wire, bool norm, int ranks>
Kernel kernelOf(Protocol protocol) {
  switch (protocol) {
    case Protocol::kOneshot: return runKernel<D, Isa, wire, ranks, Protocol::kOneshot, norm>;
    case Protocol::kTwoshot: return runKernel<D, Isa, wire, ranks, Protocol::kTwoshot, norm>;
    case Protocol::kWindowOneshot:
      if constexpr (wire == Wire::kFlags) return runKernel<D, Isa, wire, ranks, Protocol::kWindowOneshot, norm>;
      break;
    case Protocol::kWindowTwoshot:
      if constexpr (wire == Wire::kFlags && !norm)
        return runKernel<D, Isa, wire, ranks, Protocol::kWindowTwoshot, norm>;
      break;
    case Protocol::kLowPrecision: break;  // in files of its own
  }
  return nullptr;
}

// Two ranks get kernels of their own where it was measured to matter: the loop over ranks disappears from the inner
// loop.
template <class D, class Isa>
Kernel findFloatKernel(Protocol protocol, Wire wire, bool norm, int ranks) {
  constexpr int kTwo = Isa::kHasKernelsForTwo ? 2 : 0;
  const bool two = ranks == 2;
  if (wire == Wire::kLamport) {
    if (protocol != Protocol::kOneshot || !two) {
      return norm ? kernelOf<D, Isa, Wire::kLamport, true, 0>(protocol)
                  : kernelOf<D, Isa, Wire::kLamport, false, 0>(protocol);
    }
    return norm ? runKernel<D, Isa, Wire::kLamport, kTwo, Protocol::kOneshot, true>
                : runKernel<D, Isa, Wire::kLamport, kTwo, Protocol::kOneshot, false>;
  }
  if (two) {
    return norm ? kernelOf<D, Isa, Wire::kFlags, true, kTwo>(protocol)
                : kernelOf<D, Isa, Wire::kFlags, false, kTwo>(protocol);
  }
  return norm ? kernelOf<D, Isa, Wire::kFlags, true, 0>(protocol) : kernelOf<D, Isa, Wire::kFlags, false, 0>(protocol);
}

}  // namespace
}  // namespace fccl::host
