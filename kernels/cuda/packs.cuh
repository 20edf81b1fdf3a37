// 16-byte packs in registers: number types, loads and stores to memory that peers see, and to memory that they do not.
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
  static FCCL_TEAM_FN Floats<4> widen(Raw raw) {
    return {{__uint_as_float(raw.words[0]), __uint_as_float(raw.words[1]), __uint_as_float(raw.words[2]),
             __uint_as_float(raw.words[3])}};
  }
  static FCCL_TEAM_FN Raw narrow(Floats<4> f) {
    return {{__float_as_uint(f.v[0]), __float_as_uint(f.v[1]), __float_as_uint(f.v[2]), __float_as_uint(f.v[3])}};
  }
};

struct Bf16 {
  static constexpr int kElements = 8;
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
  static constexpr int kElements = 8;
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

// Relaxed at system scope: each word is its own flag, nothing else hangs on it. PTX promises 16-byte accesses only in
// pieces, so readers look at every word.
FCCL_TEAM_FN Raw loadSlot(const char* at) {
  Raw raw;
  asm volatile("ld.relaxed.sys.global.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(raw.words[0]), "=r"(raw.words[1]), "=r"(raw.words[2]), "=r"(raw.words[3])
               : "l"(at)
               : "memory");
  return raw;
}
FCCL_TEAM_FN void storeSlot(char* at, Raw raw) {
  asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(raw.words[0]), "r"(raw.words[1]),
               "r"(raw.words[2]), "r"(raw.words[3])
               : "memory");
}

FCCL_TEAM_FN bool holdsSentinel(Raw raw) {
  return raw.words[0] == kSentinel || raw.words[1] == kSentinel || raw.words[2] == kSentinel ||
         raw.words[3] == kSentinel;
}
FCCL_TEAM_FN Raw withoutSentinel(Raw raw) {
#pragma unroll
  for (int i = 0; i < 4; i++) raw.words[i] = raw.words[i] == kSentinel ? 0u : raw.words[i];
  return raw;
}

// A pack of the row: `elements` of it are inside the row.
struct Pack {
  int index;
  int elements;
};

// The caller's memory. Whole packs where rows are 16-byte aligned, else element by element.
template <class D, bool aligned>
FCCL_TEAM_FN Raw loadUser(const char* row, Pack p) {
  constexpr int kBytes = 16 / D::kElements;
  if (aligned && p.elements == D::kElements) {
    const uint4 v = *reinterpret_cast<const uint4*>(row + static_cast<int64_t>(p.index) * 16);
    return {{v.x, v.y, v.z, v.w}};
  }
  Raw raw{};
#pragma unroll
  for (int i = 0; i < D::kElements; i++) {
    if (i >= p.elements) continue;
    const char* at = row + static_cast<int64_t>(p.index) * 16 + i * kBytes;
    if constexpr (kBytes == 4) {
      raw.words[i] = *reinterpret_cast<const uint32_t*>(at);
    } else {
      raw.words[i / 2] |= static_cast<uint32_t>(*reinterpret_cast<const uint16_t*>(at)) << (i % 2 * 16);
    }
  }
  return raw;
}
template <class D, bool aligned>
FCCL_TEAM_FN void storeUser(char* row, Pack p, Raw raw) {
  constexpr int kBytes = 16 / D::kElements;
  if (aligned && p.elements == D::kElements) {
    *reinterpret_cast<uint4*>(row + static_cast<int64_t>(p.index) * 16) =
        make_uint4(raw.words[0], raw.words[1], raw.words[2], raw.words[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < D::kElements; i++) {
    if (i >= p.elements) continue;
    char* at = row + static_cast<int64_t>(p.index) * 16 + i * kBytes;
    if constexpr (kBytes == 4) {
      *reinterpret_cast<uint32_t*>(at) = raw.words[i];
    } else {
      *reinterpret_cast<uint16_t*>(at) = static_cast<uint16_t>(raw.words[i / 2] >> (i % 2 * 16));
    }
  }
}

}  // namespace fccl::cuda
