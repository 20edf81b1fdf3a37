#include "tests/perf/epilogue_loops.h"

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "tests/perf/cases.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FCCL_LOOPS_X86 1
#include <immintrin.h>
#endif

namespace fccl::perf {
namespace {

struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};
template <int kNumber>
struct Part {
  static constexpr int kValue = kNumber;
};

inline __attribute__((always_inline)) uint32_t bitsOfFloat(float x) { return __builtin_bit_cast(uint32_t, x); }
inline __attribute__((always_inline)) float floatOfBits(uint32_t x) { return __builtin_bit_cast(float, x); }

float floatOfHalf(uint16_t bits) {
  const float sign = (bits & 0x8000U) != 0 ? -1.0f : 1.0f;
  const int exponent = (bits >> 10) & 31;
  const auto fraction = static_cast<float>(bits & 0x3ffU);
  if (exponent == 31) return (bits & 0x3ffU) != 0 ? NAN : sign * INFINITY;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024.0f, exponent - 25));
}

uint16_t halfOfFloat(float x) {
  const uint32_t bits = bitsOfFloat(x);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<uint16_t>(sign | 0x7e00U);
  if (magnitude >= 0x477ff000U) return static_cast<uint16_t>(sign | 0x7c00U);  // 65520 and more
  if (magnitude < 0x38800000U) {                                               // below 2^-14
    return static_cast<uint16_t>(sign | (bitsOfFloat(floatOfBits(magnitude) + 0.5f) - 0x3f000000U));
  }
  return static_cast<uint16_t>(sign | ((magnitude + 0xfffU + ((magnitude >> 13) & 1U) - (112U << 23)) >> 13));
}

// Room for rows that no output keeps; small enough to stay in L1 or L2.
void* scratchRows(size_t bytes) {
  thread_local std::vector<std::array<char, 64>> room;
  if (room.size() * 64 < bytes) room.resize((bytes + 63) / 64);
  return room.data();
}

// The rest of a row that fills no vector. Out of line: in line the compiler may make a masked load of it, which GCC
// 13's AddressSanitizer takes for a load of the whole vector, past the row's end.
__attribute__((noinline)) void copyTail(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

#pragma GCC push_options
#pragma GCC optimize("O3")
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own intrinsics: _mm512_undefined_ps

namespace any {
#define FCCL_LOOPS_ISA 0
#include "tests/perf/epilogue_simd.h"
#undef FCCL_LOOPS_ISA
}  // namespace any

#if FCCL_LOOPS_X86
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace avx2 {
#define FCCL_LOOPS_ISA 2
#include "tests/perf/epilogue_simd.h"
#undef FCCL_LOOPS_ISA
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
namespace avx512 {
#define FCCL_LOOPS_ISA 3
#include "tests/perf/epilogue_simd.h"
#undef FCCL_LOOPS_ISA
}  // namespace avx512
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,prefer-vector-width=512")
namespace avx512bf16 {
#define FCCL_LOOPS_ISA 4
#include "tests/perf/epilogue_simd.h"
#undef FCCL_LOOPS_ISA
}  // namespace avx512bf16
#pragma GCC pop_options
#endif

#pragma GCC diagnostic pop
#pragma GCC pop_options

constexpr EpilogueLoops kAny{"generic", any::epilogue, any::widen, any::narrow, any::combine};
#if FCCL_LOOPS_X86
constexpr EpilogueLoops kAvx2{"AVX2", avx2::epilogue, avx2::widen, avx2::narrow, avx2::combine};
constexpr EpilogueLoops kAvx512{"AVX-512", avx512::epilogue, avx512::widen, avx512::narrow, avx512::combine};
constexpr EpilogueLoops kAvx512Bf16{"AVX-512 BF16", avx512bf16::epilogue, avx512bf16::widen, avx512bf16::narrow,
                                    avx512bf16::combine};
#endif

std::vector<const EpilogueLoops*> usableLoops() {
  std::vector<const EpilogueLoops*> usable;
#if FCCL_LOOPS_X86
  const bool hasAvx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool hasAvx512 = hasAvx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (hasAvx512 && __builtin_cpu_supports("avx512bf16")) usable.push_back(&kAvx512Bf16);
  if (hasAvx512) usable.push_back(&kAvx512);
  if (hasAvx2) usable.push_back(&kAvx2);
#endif
  usable.push_back(&kAny);
  return usable;
}

}  // namespace

std::span<const EpilogueLoops* const> allEpilogueLoops() {
  static const std::vector<const EpilogueLoops*> loops = usableLoops();
  return loops;
}

const EpilogueLoops& epilogueLoops() {
  static const EpilogueLoops& best = *allEpilogueLoops().front();
  return best;
}

size_t scaleOffset(fcclScaleLayout_t layout, int64_t row, int64_t block, int64_t blocks) {
  const int64_t tiles = (blocks + 3) / 4;
  int64_t offset = 0;
  switch (layout) {
    case fcclScaleSwizzled128x4:
      offset = (row / 128) * tiles * 512 + (block / 4) * 512 + (row % 32) * 16 + ((row % 128) / 32) * 4 + block % 4;
      break;
    case fcclScaleSwizzled8x4: offset = (row / 8) * tiles * 32 + (block / 4) * 32 + (row % 8) * 4 + block % 4; break;
    case fcclScaleLinear: offset = row * blocks + block; break;
  }
  return static_cast<size_t>(offset);
}

size_t scaleBytes(fcclScaleLayout_t layout, int64_t rows, int64_t blocks) {
  if (layout == fcclScaleLinear) return static_cast<size_t>(rows * blocks);
  const int64_t tileRows = layout == fcclScaleSwizzled128x4 ? 128 : 8;
  return static_cast<size_t>((rows + tileRows - 1) / tileRows * tileRows * ((blocks + 3) / 4 * 4));
}

}  // namespace fccl::perf
