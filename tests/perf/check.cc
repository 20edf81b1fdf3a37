#include "tests/perf/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace fccl::perf {
namespace {

struct Format {
  int digits;       // of the significand
  int minExponent;  // of the smallest normal number
};

Format formatOf(fcclDataType_t dtype) {
  switch (dtype) {
    case fcclFloat16: return {11, -14};
    case fcclBfloat16: return {8, -126};
    case fcclFloat32: return {24, -126};
    default: return {53, -1022};
  }
}

double ulpOf(Format format, double value) {
  const int exponent = value == 0 ? format.minExponent : std::max(std::ilogb(value), format.minExponent);
  return std::ldexp(1.0, exponent - format.digits + 1);
}

double roundTo(fcclDataType_t dtype, double value) {
  if (dtype == fcclFloat64) return value;
  const auto single = static_cast<float>(value);
  if (dtype == fcclFloat32) return single;
  uint16_t raw = 0;
  float back = 0;
  epilogueLoops().narrow(dtype, &single, 1.0f, &raw, 1);
  epilogueLoops().widen(dtype, &raw, &back, 1);
  return back;
}

template <class T>
T elementAt(const void* data, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * sizeof(T), sizeof(T));
  return value;
}

std::vector<double> toDoubles(fcclDataType_t dtype, const void* data, size_t count) {
  std::vector<double> values(count);
  if (dtype == fcclFloat64) {
    for (size_t i = 0; i < count; i++) values[i] = elementAt<double>(data, i);
  } else if (dtype == fcclFloat32) {
    for (size_t i = 0; i < count; i++) values[i] = elementAt<float>(data, i);
  } else {
    std::vector<float> wide(count);
    epilogueLoops().widen(dtype, data, wide.data(), count);
    std::copy(wide.begin(), wide.end(), values.begin());
  }
  return values;
}

// Counts what is wrong in the outputs of one variant and describes the first.
class Findings {
 public:
  explicit Findings(std::string where) : where_(std::move(where)) {}

  void close(const char* output, size_t index, double got, double expected, double allowed) {
    if (std::abs(got - expected) <= allowed) return;
    note(output, index, fmt::format("{}", got), fmt::format("{} +- {:.3g}", expected, allowed));
  }
  template <class T>
  void equal(const char* output, size_t index, T got, T expected) {
    if (got != expected) note(output, index, fmt::format("{}", got), fmt::format("{}", expected));
  }
  long long count() const { return count_; }

 private:
  void note(const char* output, size_t index, const std::string& got, const std::string& expected) {
    if (count_++ > 0) return;
    fmt::print(stderr, "# wrong: {}: {}[{}] is {}, expected {}\n", where_, output, index, got, expected);
  }

  const std::string where_;
  long long count_ = 0;
};

template <class T>
T combineIntegers(fcclRedOp_t op, T a, T b) {
  using Wide = std::make_unsigned_t<std::conditional_t<(sizeof(T) < sizeof(int)), int, T>>;  // wraps around
  switch (op) {
    case fcclProd: return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
    case fcclMax: return std::max(a, b);
    case fcclMin: return std::min(a, b);
    default: return static_cast<T>(static_cast<Wide>(a) + static_cast<Wide>(b));
  }
}

template <class T>
void checkIntegers(const Case& c, int ranks, uint64_t call, const Variant& variant, Findings& findings) {
  const size_t count = c.count();
  std::vector<T> expected(count);
  std::vector<T> mine(count);
  Producer(c.dtype, c.op, 0).produce(expected.data(), count, call);
  for (int rank = 1; rank < ranks; rank++) {
    Producer(c.dtype, c.op, rank).produce(mine.data(), count, call);
    for (size_t i = 0; i < count; i++) expected[i] = combineIntegers(c.op, expected[i], mine[i]);
  }
  for (size_t i = 0; i < count; i++) {
    const T wanted = c.op == fcclAvg ? static_cast<T>(expected[i] / static_cast<T>(ranks)) : expected[i];
    findings.equal("output", i, elementAt<T>(variant.buffers().output, i), wanted);
  }
}

// The all-reduce in float64, not rounded.
std::vector<double> exactReduction(const Case& c, int ranks, uint64_t call) {
  const size_t count = c.count();
  std::vector<double> reduced;
  std::vector<char> raw(c.bytes());
  for (int rank = 0; rank < ranks; rank++) {
    Producer(c.dtype, c.op, rank).produce(raw.data(), count, call);
    std::vector<double> mine = toDoubles(c.dtype, raw.data(), count);
    if (rank == 0) {
      reduced = std::move(mine);
      continue;
    }
    for (size_t i = 0; i < count; i++) {
      switch (c.op) {
        case fcclProd: reduced[i] *= mine[i]; break;
        case fcclMax: reduced[i] = std::max(reduced[i], mine[i]); break;
        case fcclMin: reduced[i] = std::min(reduced[i], mine[i]); break;
        default: reduced[i] += mine[i]; break;
      }
    }
  }
  if (c.op == fcclAvg) {
    for (double& value : reduced) value /= ranks;
  }
  return reduced;
}

// What roundings too many may have cost a sum: inputs are below 2, and partial sums below 2 * ranks.
double slackOf(const Case& c, int ranks, const Variant& variant, double value) {
  const bool ours = variant.name() == "fccl" || variant.name() == "unfused";
  if (ours && c.strategy == fcclStrategyLowPrecision) {
    // To four significant bits each input, and then the sum of what that has made of them.
    constexpr double kHalfStep = 1.0 / 16;
    return kHalfStep * 2 * ranks * (2 + kHalfStep) + ulpOf(formatOf(c.dtype), value);
  }
  const int rounds = variant.extraRoundings();
  if (rounds == 0) return 0;
  const Format format = formatOf(c.dtype);
  return ulpOf(format, value) + 0.5 * rounds * ulpOf(format, 2.0 * ranks);
}

void checkPlain(const Case& c, int ranks, uint64_t call, const Variant& variant, Findings& findings) {
  const std::vector<double> exact = exactReduction(c, ranks, call);
  const std::vector<double> got = toDoubles(c.dtype, variant.buffers().output, c.count());
  for (size_t i = 0; i < got.size(); i++) {
    const double expected = roundTo(c.dtype, exact[i]);
    findings.close("output", i, got[i], expected, slackOf(c, ranks, variant, expected));
  }
}

// One row of normalised values: what is known of them, and how exactly.
struct NormRow {
  std::vector<double> values;
  std::vector<double> allowed;  // 0 where the values are the ones that were quantized
};

double halfStepE4m3(double value) { return 0.5 * ulpOf({4, -6}, std::min(std::abs(value), 448.0)); }
double halfStepE2m1(double value) { return 0.5 * ulpOf({2, 0}, std::min(std::abs(value), 6.0)); }

void checkFp8Row(const Buffers& buffers, size_t start, const NormRow& row, bool exact, Findings& findings) {
  const float reciprocal = 1.0f / buffers.fp8DequantScale;
  for (size_t i = 0; i < row.values.size(); i++) {
    const uint8_t got = buffers.quantOut[start + i];
    const double scaled = static_cast<float>(row.values[i]) * reciprocal;
    if (exact) {
      findings.equal("quantOut", start + i, got, referenceE4m3(scaled));
      continue;
    }
    const double value = valueOfE4m3(got);
    const double allowed = halfStepE4m3(std::max(std::abs(scaled), std::abs(value))) + row.allowed[i] * reciprocal;
    findings.close("quantOut", start + i, value, std::clamp(scaled, -448.0, 448.0), allowed);
  }
}

void checkNvfp4Row(const Case& c, const Buffers& buffers, int64_t token, const NormRow& row, bool exact,
                   std::vector<uint8_t>& scalesSeen, Findings& findings) {
  const float global = buffers.nvfp4GlobalScale;
  const int64_t blocks = c.hidden / 16;
  for (int64_t block = 0; block < blocks; block++) {
    const size_t first = static_cast<size_t>(block) * 16;
    float largest = 0;
    double largestAllowed = 0;
    for (size_t i = first; i < first + 16; i++) {
      largest = std::max(largest, std::abs(static_cast<float>(row.values[i])));
      largestAllowed = std::max(largestAllowed, row.allowed[i]);
    }
    const size_t scaleAt = scaleOffset(fcclScaleSwizzled128x4, token, block, blocks);
    const uint8_t scale = buffers.scaleOut[scaleAt];
    scalesSeen[scaleAt] = scale;
    const double scaleWanted = global * largest / 6.0f;
    const auto scaleValue = static_cast<float>(valueOfE4m3(scale));
    if (exact) {
      findings.equal("scaleOut", scaleAt, scale, referenceE4m3(scaleWanted));
    } else {
      findings.close("scaleOut", scaleAt, scaleValue, std::min(scaleWanted, 448.0),
                     halfStepE4m3(std::max<double>(scaleWanted, scaleValue)) + largestAllowed * global / 6);
    }
    const float multiplier = scaleValue != 0.0f ? global / scaleValue : 0.0f;
    for (size_t i = first; i < first + 16; i++) {
      const size_t index = static_cast<size_t>(token * c.hidden) + i;
      const auto got = static_cast<uint8_t>((buffers.quantOut[index / 2] >> (index % 2 * 4)) & 15U);
      const double scaled = static_cast<float>(row.values[i]) * multiplier;
      if (exact) {
        findings.equal("quantOut", index, got, referenceE2m1(scaled));
        continue;
      }
      const double value = valueOfE2m1(got);
      findings.close("quantOut", index, value, std::clamp(scaled, -6.0, 6.0),
                     halfStepE2m1(std::max(std::abs(scaled), std::abs(value))) + row.allowed[i] * multiplier);
    }
  }
}

void checkFused(const Case& c, int ranks, uint64_t call, const Variant& variant, Findings& findings) {
  const PatternTraits traits = traitsOf(c.pattern);
  const Buffers& buffers = variant.buffers();
  const Format format = formatOf(c.dtype);
  const auto hidden = static_cast<size_t>(c.hidden);
  const std::vector<double> sums = exactReduction(c, ranks, call);
  const std::vector<double> weight = toDoubles(c.dtype, buffers.weight, hidden);
  std::vector<double> residual;
  if (traits.residual) {
    std::vector<char> raw(c.bytes());
    fillResidual(c.dtype, raw.data(), c.count());
    residual = toDoubles(c.dtype, raw.data(), c.count());
  }
  std::vector<uint8_t> scalesSeen(buffers.scaleBytes);
  NormRow row{std::vector<double>(hidden), std::vector<double>(hidden)};
  std::vector<double> kept(hidden);
  std::vector<double> keptAllowed(hidden);
  // fp32 additions of the squares in any order, of which the root halves the error; two more roundings.
  int64_t first = 0;
  int64_t count = c.tokens;
  if (c.sharded && variant.name() == "fccl") {
    require(fcclResidualShard(c.tokens, ranks, variant.rank(), &first, &count), "fcclResidualShard", nullptr);
  }
  const double fp32Ulps = static_cast<double>(c.hidden) / 32 + 8;

  for (int64_t token = 0; token < c.tokens; token++) {
    const size_t start = static_cast<size_t>(token) * hidden;
    double squares = 0;
    for (size_t i = 0; i < hidden; i++) {
      kept[i] = roundTo(c.dtype, sums[start + i]);
      if (traits.residual) kept[i] = roundTo(c.dtype, kept[i] + residual[start + i]);
      keptAllowed[i] = slackOf(c, ranks, variant, kept[i]);
      squares += kept[i] * kept[i];
    }
    const double factor = 1.0 / std::sqrt(squares / static_cast<double>(c.hidden) + 1e-5);
    if (traits.residual && token >= first && token < first + count) {
      const std::vector<double> got =
          toDoubles(c.dtype, static_cast<const char*>(buffers.residualOut) + start * bytesOf(c.dtype), hidden);
      for (size_t i = 0; i < hidden; i++) findings.close("residualOut", start + i, got[i], kept[i], keptAllowed[i]);
    }
    for (size_t i = 0; i < hidden; i++) {
      row.values[i] = kept[i] * factor * weight[i];
      const double rounding = c.dtype == fcclFloat32 ? fp32Ulps : 1.0;
      row.allowed[i] = rounding * ulpOf(format, row.values[i]) + 2 * keptAllowed[i] * factor * weight[i];
    }
    if (traits.normOut) {
      const std::vector<double> got =
          toDoubles(c.dtype, static_cast<const char*>(buffers.normOut) + start * bytesOf(c.dtype), hidden);
      for (size_t i = 0; i < hidden; i++) findings.close("normOut", start + i, got[i], row.values[i], row.allowed[i]);
      row.values = got;
      std::fill(row.allowed.begin(), row.allowed.end(), 0.0);
    }
    if (traits.fp8) checkFp8Row(buffers, start, row, traits.normOut, findings);
    if (traits.nvfp4) checkNvfp4Row(c, buffers, token, row, traits.normOut, scalesSeen, findings);
  }
  // Left in scalesSeen are the padding's zeros.
  for (size_t i = 0; i < scalesSeen.size(); i++) findings.equal("scaleOut", i, buffers.scaleOut[i], scalesSeen[i]);
}

template <size_t kCodes, class Value>
uint8_t nearestCode(double value, Value valueOf) {
  const uint8_t sign = std::signbit(value) ? kCodes : 0;
  const double magnitude = std::abs(value);
  uint8_t low = 0;  // the largest code whose value does not exceed the magnitude
  uint8_t high = kCodes;
  while (high - low > 1) {
    const auto middle = static_cast<uint8_t>((low + high) / 2);
    (valueOf(middle) <= magnitude ? low : high) = middle;
  }
  if (high == kCodes) return sign | low;
  const double below = magnitude - valueOf(low);
  const double above = valueOf(high) - magnitude;
  const bool up = above < below || (above == below && low % 2 == 1);
  return static_cast<uint8_t>(sign | (up ? high : low));
}

}  // namespace

double valueOfE4m3(uint8_t code) {
  const int magnitude = code & 0x7f;
  if (magnitude == 0x7f) return std::numeric_limits<double>::quiet_NaN();
  const int exponent = magnitude >> 3;
  const double value = exponent == 0 ? std::ldexp(magnitude, -9) : std::ldexp(8 + (magnitude & 7), exponent - 10);
  return (code & 0x80) != 0 ? -value : value;
}

double valueOfE2m1(uint8_t code) {
  constexpr double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8) != 0 ? -kValues[code & 7] : kValues[code & 7];
}

uint8_t referenceE4m3(double value) {
  if (std::isnan(value)) return 0x7f;
  return nearestCode<0x80>(std::clamp(value, -448.0, 448.0), [](uint8_t code) {
    return code == 0x7f ? std::numeric_limits<double>::infinity() : valueOfE4m3(code);
  });
}

uint8_t referenceE2m1(double value) {
  return nearestCode<8>(std::clamp(value, -6.0, 6.0), [](uint8_t code) { return valueOfE2m1(code); });
}

long long countWrong(const Case& c, int ranks, uint64_t call, const Variant& variant) {
  Findings findings(
      fmt::format("{}{}, {}, call {}", variant.name(), variant.inPlace() ? " in place" : "", describe(c), call));
  if (c.fused()) {
    checkFused(c, ranks, call, variant, findings);
    return findings.count();
  }
  switch (c.dtype) {
    case fcclInt8: checkIntegers<int8_t>(c, ranks, call, variant, findings); break;
    case fcclUint8: checkIntegers<uint8_t>(c, ranks, call, variant, findings); break;
    case fcclInt32: checkIntegers<int32_t>(c, ranks, call, variant, findings); break;
    case fcclUint32: checkIntegers<uint32_t>(c, ranks, call, variant, findings); break;
    case fcclInt64: checkIntegers<int64_t>(c, ranks, call, variant, findings); break;
    case fcclUint64: checkIntegers<uint64_t>(c, ranks, call, variant, findings); break;
    default: checkPlain(c, ranks, call, variant, findings); break;
  }
  return findings.count();
}

}  // namespace fccl::perf
