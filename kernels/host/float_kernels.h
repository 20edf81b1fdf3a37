// The kernels of one SIMD target for sums of fp32, fp16 and bf16: protocol texts instantiated for the host team.
#pragma once

#include "kernels/host/team.h"
#include "kernels/oneshot.h"
#include "kernels/twoshot.h"
#include "kernels/user_buffer.h"

namespace fccl::host {
namespace {

template <class Team, Protocol protocol, bool norm>
void runKernel(World& world, const Call& call) {
  Team team(world, call);
  using Pattern = RuntimePattern<norm>;
  if constexpr (protocol == Protocol::kOneshot) oneshot<Pattern>(team, call.rows);
  if constexpr (protocol == Protocol::kTwoshot) twoshot<Pattern>(team, call.rows);
  if constexpr (protocol == Protocol::kWindowOneshot) userBufferOneshot<Pattern>(team, call.rows);
  if constexpr (protocol == Protocol::kWindowTwoshot) userBufferTwoshot<Pattern>(team, call.rows);
}

template <class D, class Isa, Wire wire, bool norm, int ranks>
Kernel kernelOf(Protocol protocol) {
  using Team = HostTeam<D, Isa, wire, ranks>;
  switch (protocol) {
    case Protocol::kOneshot: return runKernel<Team, Protocol::kOneshot, norm>;
    case Protocol::kTwoshot: return runKernel<Team, Protocol::kTwoshot, norm>;
    case Protocol::kWindowOneshot:
      if constexpr (wire == Wire::kFlags) return runKernel<Team, Protocol::kWindowOneshot, norm>;
      break;
    case Protocol::kWindowTwoshot:
      if constexpr (wire == Wire::kFlags && !norm) return runKernel<Team, Protocol::kWindowTwoshot, norm>;
      break;
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
    return norm ? runKernel<HostTeam<D, Isa, Wire::kLamport, kTwo>, Protocol::kOneshot, true>
                : runKernel<HostTeam<D, Isa, Wire::kLamport, kTwo>, Protocol::kOneshot, false>;
  }
  if (two) {
    return norm ? kernelOf<D, Isa, Wire::kFlags, true, kTwo>(protocol)
                : kernelOf<D, Isa, Wire::kFlags, false, kTwo>(protocol);
  }
  return norm ? kernelOf<D, Isa, Wire::kFlags, true, 0>(protocol) : kernelOf<D, Isa, Wire::kFlags, false, 0>(protocol);
}

}  // namespace
}  // namespace fccl::host
