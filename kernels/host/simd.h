// Number types over packs of `Isa::kLanes` elements. Everything here has internal linkage: each SIMD target is compiled
// in files of its own with other compiler flags, and the linker must never merge two of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/host/sentinel.h"
#include "kernels/team_macros.h"

namespace fccl::host {
namespace {

template <class T, int lanes>
struct VectorTypeOf {
  typedef T Type __attribute__((vector_size(sizeof(T) * lanes)));
};
template <class T, int lanes>
using VectorOf = typename VectorTypeOf<T, lanes>::Type;

struct Fp32 {
  static constexpr size_t kBytes = 4;
};
struct Fp16 {
  static constexpr size_t kBytes = 2;
};
struct Bf16 {
  static constexpr size_t kBytes = 2;
};

template <class D, class Isa>
struct Num;

template <class Isa>
struct Num<Fp32, Isa> {
  using Raw = typename Isa::Raw32;
  using Values = typename Isa::Floats;
  struct Rounded {
    Values values;
    FCCL_TEAM_FN Values widen() const { return values; }
    FCCL_TEAM_FN Raw narrow() const { return (Raw)values; }
  };
  static FCCL_TEAM_FN Values widen(Raw raw) { return (Values)raw; }
  static FCCL_TEAM_FN Rounded round(Values v) { return {v}; }
};

template <class Isa>
struct Num<Bf16, Isa> {
  using Raw = typename Isa::Raw16;
  using Values = typename Isa::Floats;
  struct Rounded {
    Raw raw;
    FCCL_TEAM_FN Values widen() const { return Isa::widenBf16(raw); }
    FCCL_TEAM_FN Raw narrow() const { return raw; }
  };
  static FCCL_TEAM_FN Values widen(Raw raw) { return Isa::widenBf16(raw); }
  static FCCL_TEAM_FN Rounded round(Values v) { return {Isa::narrowBf16(v)}; }
};

template <class Isa>
struct Num<Fp16, Isa> {
  using Raw = typename Isa::Raw16;
  using Values = typename Isa::Floats;
  struct Rounded {
    Raw raw;
    FCCL_TEAM_FN Values widen() const { return Isa::widenFp16(raw); }
    FCCL_TEAM_FN Raw narrow() const { return raw; }
  };
  static FCCL_TEAM_FN Values widen(Raw raw) { return Isa::widenFp16(raw); }
  static FCCL_TEAM_FN Rounded round(Values v) { return {Isa::narrowFp16(v)}; }
};

// e4m3 codes of finite or infinite or NaN lanes, one per 32-bit lane: fccl::e4m3FromFloat on vectors.
template <class Isa>
FCCL_TEAM_FN typename Isa::Words e4m3Codes(typename Isa::Floats f) {
  using Words = typename Isa::Words;
  using Floats = typename Isa::Floats;
  const Words u = (Words)f;
  const Words sign = (u >> 24) & 0x80u;
  const Words a = u & 0x7fffffffu;
  const Words subnormal = (Words)((Floats)a + 16384.0f) - 0x46800000u;
  Words normal = ((a + 0x7ffffu + ((a >> 20) & 1u)) >> 20) - 960u;
  const Words tooLarge = (Words)(normal > 0x7eu);
  normal = (tooLarge & 0x7eu) | (~tooLarge & normal);
  const Words isSubnormal = (Words)(a < 0x3c800000u);
  const Words isNan = (Words)(a > 0x7f800000u);
  const Words code = (isSubnormal & subnormal) | (~isSubnormal & normal);
  return sign | (isNan & 0x7fu) | (~isNan & code);
}

// e2m1 codes, one per 32-bit lane: fccl::e2m1FromFloat on vectors. A true comparison is -1.
template <class Isa>
FCCL_TEAM_FN typename Isa::Words e2m1Codes(typename Isa::Floats f) {
  using Words = typename Isa::Words;
  using Floats = typename Isa::Floats;
  const Words u = (Words)f;
  const Words sign = (u >> 28) & 8u;
  const Words bits = u & 0x7fffffffu;
  const Floats a = (Floats)bits;
  const Words code = -((Words)(a > 0.25f) + (Words)(a >= 0.75f) + (Words)(a > 1.25f) + (Words)(a >= 1.75f) +
                       (Words)(a > 2.5f) + (Words)(a >= 3.5f) + (Words)(a > 5.0f));
  const Words isNan = (Words)(bits > 0x7f800000u);
  return sign | (isNan & 7u) | (~isNan & code);
}

}  // namespace
}  // namespace fccl::host
