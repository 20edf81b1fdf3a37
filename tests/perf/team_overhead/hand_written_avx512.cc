#include <immintrin.h>

#include <cmath>

#include "kernels/host/sentinel.h"
#include "kernels/host/wait.h"
#include "tests/perf/team_overhead/hand_written.h"

namespace fccl::perf {
namespace {

using host::Call;
using host::World;

enum class HandWire { kLamport, kFlags, kStreamed };

#define FCCL_INLINE inline __attribute__((always_inline))

constexpr int kSentinel = static_cast<int>(host::kSentinel);

// What differs between fp32 (a register of 64 bytes) and bf16 (32 bytes).
FCCL_INLINE __m512i load64(const char* at) { return _mm512_loadu_si512(at); }
FCCL_INLINE __m256i load32(const char* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }
FCCL_INLINE void store(char* at, __m512i v) { _mm512_storeu_si512(at, v); }
FCCL_INLINE void store(char* at, __m256i v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), v); }
FCCL_INLINE void stream(char* at, __m512i v) { _mm512_stream_si512(reinterpret_cast<__m512i*>(at), v); }
FCCL_INLINE void stream(char* at, __m256i v) { _mm256_stream_si256(reinterpret_cast<__m256i*>(at), v); }
FCCL_INLINE __m512i clean(__m512i v) {
  return _mm512_maskz_mov_epi32(_mm512_cmpneq_epi32_mask(v, _mm512_set1_epi32(kSentinel)), v);
}
FCCL_INLINE __m256i clean(__m256i v) {
  return _mm256_maskz_mov_epi32(_mm256_cmpneq_epi32_mask(v, _mm256_set1_epi32(kSentinel)), v);
}
FCCL_INLINE bool armed(__m512i v) { return _mm512_cmpeq_epi32_mask(v, _mm512_set1_epi32(kSentinel)) != 0; }
FCCL_INLINE bool armed(__m256i v) { return _mm256_cmpeq_epi32_mask(v, _mm256_set1_epi32(kSentinel)) != 0; }
FCCL_INLINE void arm(char* at, __m512i) { store(at, _mm512_set1_epi32(kSentinel)); }
FCCL_INLINE void arm(char* at, __m256i) { store(at, _mm256_set1_epi32(kSentinel)); }

struct Fp32 {
  static constexpr int64_t kPack = 64;  // bytes
  static FCCL_INLINE __m512i load(const char* at) { return load64(at); }
};
struct Bf16 {
  static constexpr int64_t kPack = 32;
  static FCCL_INLINE __m256i load(const char* at) { return load32(at); }
};

FCCL_INLINE __m512 widen(__m256i raw) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16)); }
__attribute__((noinline, cold)) __m256i roundSubnormal(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 isNan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, isNan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
FCCL_INLINE __m256i round(__m512 v) {
  if (__builtin_expect(_mm512_fpclass_ps_mask(v, 0x20) != 0, 0)) return roundSubnormal(v);
  const __m256bh converted = _mm512_cvtneps_pbh(v);
  __m256i raw;
  __builtin_memcpy(&raw, &converted, sizeof raw);
  return raw;
}

// The wire, for two ranks.
template <HandWire wire, class D>
class Link {
 public:
  explicit Link(World& world)
      : world_(world),
        peer_(1 - world.rank),
        mine_(world.memory[static_cast<size_t>(world.rank)]),
        theirs_(world.memory[static_cast<size_t>(peer_)]),
        sequence_((wire == HandWire::kLamport ? world.lamportSequence : world.stagedSequence)[host::kReduce]) {}

  FCCL_INLINE void send(const char* row, int64_t bytes, int64_t i) const {
    const uint32_t number = sequence_ + static_cast<uint32_t>(i);
    char* to = wire == HandWire::kLamport
                   ? theirs_ + world_.layout.lamportOffset(host::kReduce, world_.rank, number % host::kRingSlots)
                   : mine_ + world_.layout.stagingOffset(host::kReduce, number % host::kRingSlots);
    for (int64_t at = 0; at < bytes; at += 4 * D::kPack) {
#pragma GCC unroll 4
      for (int k = 0; k < 4; k++) {
        const auto raw = D::load(row + at + k * D::kPack);
        if (wire == HandWire::kLamport) store(to + at + k * D::kPack, clean(raw));
        if (wire == HandWire::kFlags) store(to + at + k * D::kPack, raw);
        if (wire == HandWire::kStreamed) stream(to + at + k * D::kPack, raw);
      }
    }
    if (wire == HandWire::kStreamed) _mm_sfence();
    // Release, in postFlag: the staged row before its flag.
    if (wire != HandWire::kLamport) host::postFlag(world_.control(world_.rank).sent[host::kReduce], number + 1);
  }

  // Where the peer's chunk i stands, or NULL: the wait has failed.
  FCCL_INLINE char* open(int64_t i) const {
    const uint32_t number = sequence_ + static_cast<uint32_t>(i);
    if (wire == HandWire::kLamport) {
      return mine_ + world_.layout.lamportOffset(host::kReduce, peer_, number % host::kRingSlots);
    }
    // Acquire, in awaitFlag: the flag before the staged row.
    if (!host::awaitFlag(world_, peer_, world_.control(peer_).sent[host::kReduce], number + 1)) return nullptr;
    return theirs_ + world_.layout.stagingOffset(host::kReduce, number % host::kRingSlots);
  }

  // Where the peer's chunk i will stand.
  FCCL_INLINE const char* ahead(int64_t i) const {
    const uint32_t number = sequence_ + static_cast<uint32_t>(i);
    return theirs_ + world_.layout.stagingOffset(host::kReduce, number % host::kRingSlots);
  }

  FCCL_INLINE auto take(char* at) const {
    auto raw = D::load(at);
    if constexpr (wire == HandWire::kLamport) {
      asm volatile("" : "+v"(raw));  // one load, whatever the compiler thinks
      while (__builtin_expect(armed(raw), 0)) {
        if (!host::awaitWordsSlow(world_, peer_, at, D::kPack)) return raw;
        raw = D::load(at);
        asm volatile("" : "+v"(raw));
      }
      arm(at, raw);
    }
    return raw;
  }

  void finish(int64_t chunks) const {
    (wire == HandWire::kLamport ? world_.lamportSequence : world_.stagedSequence)[host::kReduce] +=
        static_cast<uint32_t>(chunks);
  }

 private:
  World& world_;
  const int peer_;
  char* const mine_;
  char* const theirs_;
  const uint32_t sequence_;
};

template <HandWire wire>
void plain(World& world, const Call& call) {
  const Link<wire, Fp32> link(world);
  const int64_t bytes = call.rows.cols * 4;
  const char* in = static_cast<const char*>(call.rows.input);
  char* out = static_cast<char*>(call.rows.reducedOut);
  link.send(in, bytes, 0);
  char* from = link.open(0);
  if (from == nullptr) return;
  const bool first = world.rank == 0;
  constexpr int64_t kStep = 256;
  for (int64_t at = 0; at < bytes; at += kStep) {
#pragma GCC unroll 4
    for (int64_t k = 0; k < kStep; k += 64) {
      const __m512 theirs = _mm512_castsi512_ps(link.take(from + at + k));
      const __m512 mine = _mm512_castsi512_ps(load64(in + at + k));
      __m512 sum = _mm512_add_ps(_mm512_setzero_ps(), first ? mine : theirs);
      sum = _mm512_add_ps(sum, first ? theirs : mine);
      store(out + at + k, _mm512_castps_si512(sum));
    }
  }
  link.finish(1);
}

template <HandWire wire>
void fused(World& world, const Call& call) {
  const Link<wire, Bf16> link(world);
  const RowArgs& a = call.rows;
  const int64_t bytes = a.cols * 2;
  const auto rowOf = [bytes](const void* base, int64_t row) { return static_cast<const char*>(base) + row * bytes; };
  const char* weight = static_cast<const char*>(a.weight);
  const bool first = world.rank == 0;
  const __m512 bias = _mm512_set1_ps(a.weightBias);
  constexpr int64_t kStep = 128;
  for (int64_t i = 0; i <= a.rows; i++) {
    if (i < a.rows) link.send(rowOf(a.input, i), bytes, i);
    if (i == 0) continue;
    char* from = link.open(i - 1);
    if (from == nullptr) return;
    const char* own = rowOf(a.input, i - 1);
    const char* residual = rowOf(a.residual, i - 1);
    char* residualOut = static_cast<char*>(a.residualOut) + (i - 1) * bytes;
    char* normOut = static_cast<char*>(a.normOut) + (i - 1) * bytes;
    __m512 squares[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int64_t at = 0; at < bytes; at += kStep) {
#pragma GCC unroll 4
      for (int64_t k = 0; k < 4; k++) {
        const int64_t p = at + k * 32;
        const __m512 theirs = widen(link.take(from + p));
        const __m512 mine = widen(load32(own + p));
        __m512 sum = _mm512_add_ps(_mm512_setzero_ps(), first ? mine : theirs);
        sum = _mm512_add_ps(sum, first ? theirs : mine);
        const __m256i raw = round(_mm512_add_ps(widen(round(sum)), widen(load32(residual + p))));
        store(residualOut + p, raw);
        const __m512 value = widen(raw);
        squares[k] = _mm512_add_ps(squares[k], _mm512_mul_ps(value, value));
      }
    }
    const __m512 lanes = _mm512_add_ps(_mm512_add_ps(squares[0], squares[1]), _mm512_add_ps(squares[2], squares[3]));
    alignas(64) float v[16];
    _mm512_store_ps(v, lanes);
    for (int half = 8; half >= 1; half /= 2) {
      for (int j = 0; j < half; j++) v[j] += v[j + half];
    }
    const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(v[0] / static_cast<float>(a.cols) + a.eps));
    const bool fetches = wire == HandWire::kStreamed && i < a.rows;
    const char* ahead = link.ahead(i);
    for (int64_t at = 0; at < bytes; at += kStep) {
      if (fetches) {
        __builtin_prefetch(ahead + at);
        __builtin_prefetch(ahead + at + 64);
        __builtin_prefetch(residual + bytes + at, 0, 2);
        __builtin_prefetch(residual + bytes + at + 64, 0, 2);
      }
#pragma GCC unroll 4
      for (int64_t k = 0; k < 4; k++) {
        const int64_t p = at + k * 32;
        const __m512 value = _mm512_mul_ps(widen(load32(residualOut + p)), scale);
        const __m256i norm = round(_mm512_mul_ps(value, _mm512_add_ps(widen(load32(weight + p)), bias)));
        if (wire == HandWire::kStreamed) {
          stream(normOut + p, norm);
        } else {
          store(normOut + p, norm);
        }
      }
    }
  }
  if (wire == HandWire::kStreamed) _mm_sfence();
  link.finish(a.rows);
}

}  // namespace

const HandWritten* handWritten() {
  static constexpr HandWritten loops{plain<HandWire::kLamport>, plain<HandWire::kFlags>, plain<HandWire::kStreamed>,
                                     fused<HandWire::kLamport>, fused<HandWire::kFlags>, fused<HandWire::kStreamed>};
  return host::simdAvailable(host::Simd::kAvx512) ? &loops : nullptr;
}

}  // namespace fccl::perf
