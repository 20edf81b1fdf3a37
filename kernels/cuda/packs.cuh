// 16-byte packs in registers: number types, and loads and stores of the caller's memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/team_macros.h"

namespace fccl::cuda {

// Compared as an integer at the width of a word, whatever the data type.
constexpr uint32_t kSentinel = 0x80000000u;

struct alignas(16) Raw {
  uint32_t words[4];
};

template <int n>
struct Floats {
  float v[n];
};
template <int n>
FCCL_TEAM_FN Floats<n> operator+(Floats<n> a, Floats<n> b) {
#pragma unroll
  for (int i = 0; i < n; i++) a.v[i] = __fadd_rn(a.v[i], b.v[i]);
  return a;
}
template <int n>
FCCL_TEAM_FN Floats<n> operator*(Floats<n> a, Floats<n> b) {
#pragma unroll
  for (int i = 0; i < n; i++) a.v[i] = __fmul_rn(a.v[i], b.v[i]);
  return a;
}
template <int n>
FCCL_TEAM_FN Floats<n> operator*(Floats<n> a, float b) {
#pragma unroll
  for (int i = 0; i < n; i++) a.v[i] = __fmul_rn(a.v[i], b);
  return a;
}

struct Fp32 {
  static constexpr int kElements = 4;
  static constexpr uint32_t kInfinityBits = 0x7f800000u;
  static FCCL_TEAM_FN Floats<4> widen(Raw raw) {
    return {{__uint_as_float(raw.words[0]), __uint_as_float(raw.words[1]), __uint_as_float(raw.words[2]),
             __uint_as_float(raw.words[3])}};
  }
  // Rounded sum of two packs.
  static FCCL_TEAM_FN Raw add(Raw a, Raw b) { return narrow(widen(a) + widen(b)); }
  static FCCL_TEAM_FN Raw narrow(Floats<4> f) {
    return {{__float_as_uint(f.v[0]), __float_as_uint(f.v[1]), __float_as_uint(f.v[2]), __float_as_uint(f.v[3])}};
  }
};

struct Bf16 {
  // Two at a time, with one rounding. The fp32 sum is inexact only where one element is below 2^-16 of the other, and
  // then rounds to the larger one either way: the same bits.
  static FCCL_TEAM_FN Raw add(Raw a, Raw b) {
    Raw sum;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum.words[i]) : "r"(a.words[i]), "r"(0x3f803f80u), "r"(b.words[i]));
    }
    return sum;
  }
  static constexpr int kElements = 8;
  static constexpr uint32_t kInfinityBits = 0x7f80u;
  static FCCL_TEAM_FN Floats<8> widen(Raw raw) {
    Floats<8> f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      f.v[2 * i] = __uint_as_float(raw.words[i] << 16);
      f.v[2 * i + 1] = __uint_as_float(raw.words[i] & 0xffff0000u);
    }
    return f;
  }
  static FCCL_TEAM_FN Raw narrow(Floats<8> f) {
    Raw raw;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(f.v[2 * i], f.v[2 * i + 1]);
      memcpy(&raw.words[i], &pair, 4);
    }
    return raw;
  }
};

struct Fp16 {
  // As for bf16.
  static FCCL_TEAM_FN Raw add(Raw a, Raw b) {
    Raw sum;
#pragma unroll
    for (int i = 0; i < 4; i++) asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum.words[i]) : "r"(a.words[i]), "r"(b.words[i]));
    return sum;
  }
  static constexpr int kElements = 8;
  static constexpr uint32_t kInfinityBits = 0x7c00u;
  static FCCL_TEAM_FN Floats<8> widen(Raw raw) {
    Floats<8> f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      __half2 pair;
      memcpy(&pair, &raw.words[i], 4);
      const float2 both = __half22float2(pair);
      f.v[2 * i] = both.x;
      f.v[2 * i + 1] = both.y;
    }
    return f;
  }
  static FCCL_TEAM_FN Raw narrow(Floats<8> f) {
    Raw raw;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const __half2 pair = __floats2half2_rn(f.v[2 * i], f.v[2 * i + 1]);
      memcpy(&raw.words[i], &pair, 4);
    }
    return raw;
  }
};

// A pack of the row; `elements` of it are inside the row, none where the row ends before.
struct Pack {
  int index;
  int elements;
};

// How rows lie in the caller's memory.
enum class Edge : uint8_t {
  kWhole,  // 16-byte aligned, whole packs
  kTail,   // 16-byte aligned, the last pack may be cut
  kAny     // element by element
};

// What the caches are told of the caller's memory.
enum class Reuse : uint8_t {
  kSoon,
  kNone  // leaves them first
};

// Packs outside of the row read as zero and are not written.
template <class D, Edge edge, Reuse reuse = Reuse::kSoon>
FCCL_TEAM_FN Raw loadUser(const char* row, Pack p) {
  constexpr int kBytes = 16 / D::kElements;
  const char* pack = row + static_cast<uint64_t>(static_cast<uint32_t>(p.index)) * 16;
  Raw raw{};
  if (edge == Edge::kWhole ? p.elements > 0 : edge == Edge::kTail && p.elements == D::kElements) {
    const auto* at = reinterpret_cast<const uint4*>(pack);
    const uint4 v = reuse == Reuse::kNone ? __ldcs(at) : *at;
    return {{v.x, v.y, v.z, v.w}};
  }
  if constexpr (edge != Edge::kWhole) {
#pragma unroll
    for (int i = 0; i < D::kElements; i++) {
      if (i >= p.elements) continue;
      const char* at = pack + i * kBytes;
      if constexpr (kBytes == 4) {
        raw.words[i] = *reinterpret_cast<const uint32_t*>(at);
      } else {
        raw.words[i / 2] |= static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(at)) << (i % 2 * 16);
      }
    }
  }
  return raw;
}
template <class D, Edge edge, Reuse reuse = Reuse::kSoon>
FCCL_TEAM_FN void storeUser(char* row, Pack p, Raw raw) {
  constexpr int kBytes = 16 / D::kElements;
  char* pack = row + static_cast<uint64_t>(static_cast<uint32_t>(p.index)) * 16;
  if (edge == Edge::kWhole ? p.elements > 0 : edge == Edge::kTail && p.elements == D::kElements) {
    const uint4 v = make_uint4(raw.words[0], raw.words[1], raw.words[2], raw.words[3]);
    auto* at = reinterpret_cast<uint4*>(pack);
    if constexpr (reuse == Reuse::kNone) {
      __stcs(at, v);
    } else {
      *at = v;
    }
    return;
  }
  if constexpr (edge != Edge::kWhole) {
#pragma unroll
    for (int i = 0; i < D::kElements; i++) {
      if (i >= p.elements) continue;
      char* at = pack + i * kBytes;
      if constexpr (kBytes == 4) {
        *reinterpret_cast<uint32_t*>(at) = raw.words[i];
      } else {
        *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(raw.words[i / 2] >> (i % 2 * 16));
      }
    }
  }
}

}  // namespace fccl::cuda
