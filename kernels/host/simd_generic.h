// Packs of 16 elements in GCC's vector types, which it splits into what the processor has: any processor. Conversions
// are calls, for the compiler's sake. Included by the *_generic.cc files only.
#pragma once

#include "kernels/formats.h"
#include "kernels/host/simd.h"

namespace fccl::host {
namespace {

struct Generic {
  static constexpr int kLanes = 16;
  static constexpr bool kHasKernelsForTwo = false;

  // From here on the value is in a register (or, where registers are too small, in memory of its own).
  template <class Raw>
  static FCCL_TEAM_FN void pin(Raw& raw) {
    asm volatile("" : "+m"(raw));
  }

  using Floats = VectorOf<float, 16>;
  using Words = VectorOf<uint32_t, 16>;
  using Raw16 = VectorOf<uint16_t, 16>;
  using Raw32 = VectorOf<uint32_t, 16>;

  static __attribute__((noinline)) Floats widenBf16(Raw16 raw) {
    return (Floats)(__builtin_convertvector(raw, Words) << 16);
  }
  static __attribute__((noinline)) Raw16 narrowBf16(Floats f) {
    Raw16 raw;
    for (int i = 0; i < 16; i++) raw[i] = fccl::narrowBf16(f[i]);
    return raw;
  }
  static __attribute__((noinline)) Floats widenFp16(Raw16 raw) {
    Floats f;
    for (int i = 0; i < 16; i++) f[i] = fccl::widenFp16(raw[i]);
    return f;
  }
  static __attribute__((noinline)) Raw16 narrowFp16(Floats f) {
    Raw16 raw;
    for (int i = 0; i < 16; i++) raw[i] = fccl::narrowFp16(f[i]);
    return raw;
  }

  static FCCL_TEAM_FN bool anyWordEquals(Raw32 raw, uint32_t word) {
    bool any = false;
    for (int i = 0; i < 16; i++) any |= raw[i] == word;
    return any;
  }
  static FCCL_TEAM_FN bool anyWordEquals(Raw16 raw, uint32_t word) {
    const auto words = (VectorOf<uint32_t, 8>)raw;
    bool any = false;
    for (int i = 0; i < 8; i++) any |= words[i] == word;
    return any;
  }
  static FCCL_TEAM_FN Raw32 zeroWordsEqual(Raw32 raw, uint32_t word) { return raw & (Words)(raw != word); }
  static FCCL_TEAM_FN Raw16 zeroWordsEqual(Raw16 raw, uint32_t word) {
    auto words = (VectorOf<uint32_t, 8>)raw;
    words &= (VectorOf<uint32_t, 8>)(words != word);
    return (Raw16)words;
  }

  template <class Raw>
  static FCCL_TEAM_FN void stream(void* to, Raw v) {
    __builtin_memcpy(to, &v, sizeof v);
  }
  static FCCL_TEAM_FN void streamFence() {}

  static FCCL_TEAM_FN void storeBytes(uint8_t* to, Words bytes) {
    for (int i = 0; i < 16; i++) to[i] = static_cast<uint8_t>(bytes[i]);
  }
  static FCCL_TEAM_FN void storeNibbles(uint8_t* to, Words nibbles) {
    for (int i = 0; i < 8; i++) to[i] = static_cast<uint8_t>(nibbles[2 * i] | nibbles[2 * i + 1] << 4);
  }
};

}  // namespace
}  // namespace fccl::host
