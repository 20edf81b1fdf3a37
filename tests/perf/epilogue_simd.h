// The loops of epilogue_loops.h for one instruction set. No include guard: epilogue_loops.cc includes this once per
// instruction set, inside a namespace and under the matching target pragma. FCCL_LOOPS_ISA is 0 (any CPU, one element
// at a time), 2 (AVX2, FMA, F16C), 3 (AVX-512) or 4 (AVX-512 with BF16 conversion).

#if FCCL_LOOPS_ISA >= 3
struct Vec {
  static constexpr size_t kLanes = 16;
  __m512 v;
};
inline Vec splat(float x) { return {_mm512_set1_ps(x)}; }
inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec larger(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec smaller(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec multiplyAdd(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline float total(Vec a) { return _mm512_reduce_add_ps(a.v); }
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec load(const Half* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
inline Vec load(const Bfloat* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
// Stores `a` rounded and returns what was stored.
inline Vec store(float* p, Vec a) {
  _mm512_storeu_ps(p, a.v);
  return a;
}
inline Vec store(Half* p, Vec a) {
  const __m256i raw = _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), raw);
  return {_mm512_cvtph_ps(raw)};
}
inline Vec store(Bfloat* p, Vec a) {
#if FCCL_LOOPS_ISA == 4
  // Flushes subnormal numbers to zero, which the library may not; nobody would miss them in these loops.
  const __m256bh converted = _mm512_cvtneps_pbh(a.v);
  __m256i raw;
  __builtin_memcpy(&raw, &converted, sizeof(raw));
  const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16);
#else
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 isNan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __m512i high = _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, isNan, quiet), 16);
  const __m256i raw = _mm512_cvtepi32_epi16(high);
  const __m512i wide = _mm512_slli_epi32(high, 16);
#endif
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), raw);
  return {_mm512_castsi512_ps(wide)};
}

#elif FCCL_LOOPS_ISA == 2
struct Vec {
  static constexpr size_t kLanes = 8;
  __m256 v;
};
inline Vec splat(float x) { return {_mm256_set1_ps(x)}; }
inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec larger(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Vec smaller(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
inline Vec multiplyAdd(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline float total(Vec a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
inline Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline Vec load(const Half* p) { return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
inline Vec load(const Bfloat* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
inline Vec store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.v);
  return a;
}
inline Vec store(Half* p, Vec a) {
  const __m128i raw = _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), raw);
  return {_mm256_cvtph_ps(raw)};
}
inline Vec store(Bfloat* p, Vec a) {
  const __m256i bits = _mm256_castps_si256(a.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256 quiet = _mm256_castsi256_ps(_mm256_or_si256(bits, _mm256_set1_epi32(0x400000)));
  const __m256 chosen = _mm256_blendv_ps(_mm256_castsi256_ps(rounded), quiet, _mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
  const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(chosen), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
}

#else
struct Vec {
  static constexpr size_t kLanes = 1;
  float v;
};
inline Vec splat(float x) { return {x}; }
inline Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }
inline Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
inline Vec larger(Vec a, Vec b) { return {a.v > b.v ? a.v : b.v}; }
inline Vec smaller(Vec a, Vec b) { return {a.v < b.v ? a.v : b.v}; }
inline Vec multiplyAdd(Vec a, Vec b, Vec c) { return {a.v * b.v + c.v}; }
inline float total(Vec a) { return a.v; }
inline Vec load(const float* p) { return {*p}; }
inline Vec load(const Half* p) { return {floatOfHalf(p->bits)}; }
inline Vec load(const Bfloat* p) { return {floatOfBits(static_cast<uint32_t>(p->bits) << 16)}; }
inline Vec store(float* p, Vec a) {
  *p = a.v;
  return a;
}
inline Vec store(Half* p, Vec a) {
  p->bits = halfOfFloat(a.v);
  return load(p);
}
inline Vec store(Bfloat* p, Vec a) {
  const uint32_t bits = bitsOfFloat(a.v);
  p->bits = static_cast<uint16_t>((a.v != a.v ? bits | 0x400000U : bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
  return load(p);
}
#endif

// Calls `body(offset, part)` for each vector of [0, count): `part` is a constant 0..3 that rotates, so that sums have
// four independent chains; the rest that does not fill a vector goes to `tail(offset, elements)`.
template <class Body, class Tail>
inline __attribute__((always_inline)) void forEachVector(size_t count, Body&& body, Tail&& tail) {
  constexpr size_t kStep = Vec::kLanes;
  size_t i = 0;
  for (; i + 4 * kStep <= count; i += 4 * kStep) {
    body(i, Part<0>{});
    body(i + kStep, Part<1>{});
    body(i + 2 * kStep, Part<2>{});
    body(i + 3 * kStep, Part<3>{});
  }
  for (; i + kStep <= count; i += kStep) body(i, Part<0>{});
  if (i < count) tail(i, count - i);
}

// A vector whose first `elements` lanes are at p, the rest zero; and the way back.
template <class T>
inline Vec loadPartial(const T* p, size_t elements) {
  T lanes[Vec::kLanes] = {};
  copyTail(lanes, p, elements * sizeof(T));
  return load(lanes);
}
template <class T>
inline Vec storePartial(T* p, Vec a, size_t elements) {
  T lanes[Vec::kLanes];
  const Vec stored = store(lanes, a);
  copyTail(p, lanes, elements * sizeof(T));
  return stored;
}

// Round to nearest even, saturating; NaN becomes 0x7f. Without branches, so that the loops around it become vectors.
inline __attribute__((always_inline)) uint8_t e4m3OfFloat(float x) {
  const uint32_t bits = bitsOfFloat(x);
  const uint32_t sign = (bits >> 24) & 0x80U;
  const uint32_t magnitude = bits & 0x7fffffffU;
  const bool isNan = magnitude > 0x7f800000U;
  const uint32_t clamped = magnitude > 0x43e00000U ? 0x43e00000U : magnitude;  // 448
  const uint32_t normal = ((clamped + 0x7ffffU + ((clamped >> 20) & 1U)) >> 20) - ((127U - 7U) << 3);
  // 16384 has an ulp of 2^-9 above it, the step of e4m3's subnormals: the addition rounds.
  const uint32_t subnormal = bitsOfFloat(floatOfBits(clamped) + 16384.0f) - 0x46800000U;
  const uint32_t code = clamped < 0x3c800000U ? subnormal : normal;  // 2^-6
  return static_cast<uint8_t>(isNan ? 0x7fU : sign | code);
}

inline float floatOfE4m3(uint8_t code) {
  const uint32_t magnitude = code & 0x7fU;
  if (magnitude < 8) return static_cast<float>(magnitude) * (1.0f / 512.0f);
  return floatOfBits((magnitude << 20) + ((127U - 7U) << 23));
}

inline __attribute__((always_inline)) uint32_t e2m1OfFloat(float x) {
  const uint32_t bits = bitsOfFloat(x);
  const float a = floatOfBits(bits & 0x7fffffffU);
  const uint32_t code = static_cast<uint32_t>(a > 0.25f) + static_cast<uint32_t>(a >= 0.75f) +
                        static_cast<uint32_t>(a > 1.25f) + static_cast<uint32_t>(a >= 1.75f) +
                        static_cast<uint32_t>(a > 2.5f) + static_cast<uint32_t>(a >= 3.5f) +
                        static_cast<uint32_t>(a > 5.0f);
  return ((bits >> 28) & 8U) | code;
}

template <class D>
void quantizeFp8Row(const D* row, size_t hidden, float scale, uint8_t* out) {
  constexpr size_t kChunk = 64;
  const Vec reciprocal = splat(1.0f / scale);
  alignas(64) float scaled[kChunk];
  size_t i = 0;
  for (; i + kChunk <= hidden; i += kChunk) {
    for (size_t j = 0; j < kChunk; j += Vec::kLanes) store(scaled + j, load(row + i + j) * reciprocal);
    for (size_t j = 0; j < kChunk; j++) out[i + j] = e4m3OfFloat(scaled[j]);
  }
  for (; i < hidden; i++) {
    storePartial(scaled, loadPartial(row + i, 1) * reciprocal, 1);
    out[i] = e4m3OfFloat(scaled[0]);
  }
}

template <class D>
void quantizeNvfp4Row(const D* row, int64_t token, const EpilogueArgs& args) {
  constexpr size_t kBlock = 16;
  const auto hidden = static_cast<size_t>(args.hidden);
  const auto blocks = static_cast<int64_t>(hidden / kBlock);
  const float global = args.nvfp4GlobalScale;
  uint8_t* out = args.quantOut + static_cast<size_t>(token) * hidden / 2;
  alignas(64) float values[kBlock];
  alignas(64) uint32_t codes[kBlock];
  for (int64_t block = 0; block < blocks; block++) {
    const D* in = row + static_cast<size_t>(block) * kBlock;
    for (size_t j = 0; j < kBlock; j += Vec::kLanes) store(values + j, load(in + j));
    uint32_t largest = 0;  // of the bits, which order as the magnitudes do
    for (const float value : values) {
      const uint32_t magnitude = bitsOfFloat(value) & 0x7fffffffU;
      largest = magnitude > largest ? magnitude : largest;
    }
    const uint8_t scale = e4m3OfFloat(global * floatOfBits(largest) / 6.0f);
    const float scaleValue = floatOfE4m3(scale);
    const float multiplier = scaleValue != 0.0f ? global / scaleValue : 0.0f;
    for (size_t j = 0; j < kBlock; j++) codes[j] = e2m1OfFloat(values[j] * multiplier);
    for (size_t j = 0; j < kBlock / 2; j++) {
      out[static_cast<size_t>(block) * 8 + j] = static_cast<uint8_t>(codes[2 * j] | codes[2 * j + 1] << 4);
    }
    args.scaleOut[scaleOffset(args.scaleLayout, token, block, blocks)] = scale;
  }
}

template <class S, class D, bool kResidual>
void epilogueRows(const EpilogueArgs& args, D* keptRow, D* normRow) {
  const auto hidden = static_cast<size_t>(args.hidden);
  const D* weight = static_cast<const D*>(args.weight);
  const Vec bias = splat(args.weightBias);
  for (int64_t token = 0; token < args.tokens; token++) {
    const size_t start = static_cast<size_t>(token) * hidden;
    const S* sum = static_cast<const S*>(args.sum) + start;
    const D* residual = kResidual ? static_cast<const D*>(args.residual) + start : nullptr;
    D* kept = args.residualOut != nullptr ? static_cast<D*>(args.residualOut) + start : keptRow;
    D* norm = args.normOut != nullptr ? static_cast<D*>(args.normOut) + start : normRow;

    Vec squares[4] = {splat(0), splat(0), splat(0), splat(0)};
    forEachVector(
        hidden,
        [&](size_t i, auto part) __attribute__((always_inline)) {
          Vec value = load(sum + i);
          if constexpr (kResidual) value = value + load(residual + i);
          value = store(kept + i, value);
          squares[part.kValue] = multiplyAdd(value, value, squares[part.kValue]);
        },
        [&](size_t i, size_t elements) {
          Vec value = loadPartial(sum + i, elements);
          if constexpr (kResidual) value = value + loadPartial(residual + i, elements);
          value = storePartial(kept + i, value, elements);
          squares[0] = multiplyAdd(value, value, squares[0]);
        });
    const float meanSquare = total((squares[0] + squares[1]) + (squares[2] + squares[3])) / static_cast<float>(hidden);
    const Vec factor = splat(1.0f / __builtin_sqrtf(meanSquare + args.eps));
    forEachVector(
        hidden,
        [&](size_t i, auto)
            __attribute__((always_inline)) { store(norm + i, load(kept + i) * factor * (bias + load(weight + i))); },
        [&](size_t i, size_t elements) {
          storePartial(norm + i, loadPartial(kept + i, elements) * factor * (bias + loadPartial(weight + i, elements)),
                       elements);
        });
    const PatternTraits traits = traitsOf(args.pattern);
    if (traits.fp8) quantizeFp8Row(norm, hidden, args.fp8DequantScale, args.quantOut + start);
    if (traits.nvfp4) quantizeNvfp4Row(norm, token, args);
  }
}

template <class S, class D>
void epilogueOf(const EpilogueArgs& args) {
  D* scratch = static_cast<D*>(scratchRows(2 * static_cast<size_t>(args.hidden) * sizeof(D)));
  D* second = scratch + args.hidden;
  if (traitsOf(args.pattern).residual) {
    epilogueRows<S, D, true>(args, scratch, second);
  } else {
    epilogueRows<S, D, false>(args, scratch, second);
  }
}

inline void epilogue(const EpilogueArgs& args) {
  const bool wide = args.sumType == fcclFloat32;
  if (args.dtype == fcclFloat32) return epilogueOf<float, float>(args);
  if (args.dtype == fcclFloat16) return wide ? epilogueOf<float, Half>(args) : epilogueOf<Half, Half>(args);
  return wide ? epilogueOf<float, Bfloat>(args) : epilogueOf<Bfloat, Bfloat>(args);
}

template <class D>
void widenAll(const D* in, float* out, size_t count) {
  forEachVector(
      count, [&](size_t i, auto) __attribute__((always_inline)) { store(out + i, load(in + i)); },
      [&](size_t i, size_t elements) { storePartial(out + i, loadPartial(in + i, elements), elements); });
}

inline void widen(fcclDataType_t dtype, const void* in, float* out, size_t count) {
  if (dtype == fcclFloat16) return widenAll(static_cast<const Half*>(in), out, count);
  widenAll(static_cast<const Bfloat*>(in), out, count);
}

template <class D>
void narrowAll(const float* in, float factor, D* out, size_t count) {
  const Vec by = splat(factor);
  forEachVector(
      count, [&](size_t i, auto) __attribute__((always_inline)) { store(out + i, load(in + i) * by); },
      [&](size_t i, size_t elements) { storePartial(out + i, loadPartial(in + i, elements) * by, elements); });
}

inline void narrow(fcclDataType_t dtype, const float* in, float factor, void* out, size_t count) {
  if (dtype == fcclFloat16) return narrowAll(in, factor, static_cast<Half*>(out), count);
  narrowAll(in, factor, static_cast<Bfloat*>(out), count);
}

template <class D, class Function>
inline __attribute__((always_inline)) void combineAll(const D* in, D* inout, size_t count, Function&& function) {
  forEachVector(
      count,
      [&](size_t i, auto) __attribute__((always_inline)) { store(inout + i, function(load(inout + i), load(in + i))); },
      [&](size_t i, size_t elements) {
        storePartial(inout + i, function(loadPartial(inout + i, elements), loadPartial(in + i, elements)), elements);
      });
}

template <class D>
void combineOf(fcclRedOp_t op, const D* in, D* inout, size_t count) {
  switch (op) {
    case fcclSum:
    case fcclAvg:
      return combineAll(
          in, inout, count, [](Vec a, Vec b) __attribute__((always_inline)) { return a + b; });
    case fcclProd:
      return combineAll(
          in, inout, count, [](Vec a, Vec b) __attribute__((always_inline)) { return a * b; });
    case fcclMax:
      return combineAll(
          in, inout, count, [](Vec a, Vec b) __attribute__((always_inline)) { return larger(a, b); });
    case fcclMin:
      return combineAll(
          in, inout, count, [](Vec a, Vec b) __attribute__((always_inline)) { return smaller(a, b); });
  }
}

inline void combine(fcclDataType_t dtype, fcclRedOp_t op, const void* in, void* inout, size_t count) {
  if (dtype == fcclFloat16) return combineOf(op, static_cast<const Half*>(in), static_cast<Half*>(inout), count);
  combineOf(op, static_cast<const Bfloat*>(in), static_cast<Bfloat*>(inout), count);
}
