#include "tests/support/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "tests/support/number_formats.h"
#include "tests/support/test_data.h"
#include "tests/support/tolerance.h"

namespace fccl::test {
namespace {

// One step of a reduction, in the type in which the ranks' values are combined.
template <class T>
T combine(fcclRedOp_t op, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (op == fcclMax || op == fcclMin) {
      if (std::isnan(a)) return a;
      if (std::isnan(b)) return b;
      return op == fcclMax ? std::max(a, b) : std::min(a, b);
    }
    return op == fcclProd ? a * b : a + b;
  } else {
    // 64-bit unsigned arithmetic wraps without being undefined; the low bits are those of the narrow type.
    const auto wideA = static_cast<uint64_t>(static_cast<std::make_unsigned_t<T>>(a));
    const auto wideB = static_cast<uint64_t>(static_cast<std::make_unsigned_t<T>>(b));
    switch (op) {
      case fcclMax: return std::max(a, b);
      case fcclMin: return std::min(a, b);
      case fcclProd: return static_cast<T>(wideA * wideB);
      default: return static_cast<T>(wideA + wideB);
    }
  }
}

// Combined in rank order from the first rank on; a sum starts from +0, so that -0 never comes out.
template <class T, class Load>
T reduceElement(fcclRedOp_t op, int ranks, Load load) {
  const bool sum = op == fcclSum || op == fcclAvg;
  T value = sum ? combine<T>(op, T(0), load(0)) : load(0);
  for (int rank = 1; rank < ranks; ++rank) value = combine<T>(op, value, load(rank));
  if (op == fcclAvg) value = static_cast<T>(value / static_cast<T>(ranks));
  return value;
}

template <class T>
void reduceOwnType(fcclRedOp_t op, const std::vector<const void*>& inputs, size_t count, Bytes* result) {
  for (size_t i = 0; i < count; ++i) {
    const T value = reduceElement<T>(op, static_cast<int>(inputs.size()), [&](int rank) {
      T element;
      std::memcpy(&element, static_cast<const char*>(inputs[static_cast<size_t>(rank)]) + i * sizeof(T), sizeof(T));
      return element;
    });
    std::memcpy(result->data() + i * sizeof(T), &value, sizeof(T));
  }
}

void reduceInFloat(fcclDataType_t dtype, fcclRedOp_t op, const std::vector<const void*>& inputs, size_t count,
                   Bytes* result) {
  for (size_t i = 0; i < count; ++i) {
    const float value = reduceElement<float>(op, static_cast<int>(inputs.size()), [&](int rank) {
      return static_cast<float>(load(dtype, inputs[static_cast<size_t>(rank)], i));
    });
    store(dtype, result->data(), i, value);
  }
}

std::string describe(fcclDataType_t dtype, const void* buffer, size_t index) {
  const size_t bytes = dtypeBytes(dtype);
  return fmt::format("{} (bytes {})", load(dtype, buffer, index),
                     hexBytes(static_cast<const char*>(buffer) + index * bytes, bytes));
}

}  // namespace

Bytes referenceAllReduce(fcclDataType_t dtype, fcclRedOp_t op, const std::vector<const void*>& inputs, size_t count) {
  Bytes result(count * dtypeBytes(dtype));
  switch (dtype) {
    case fcclInt8: reduceOwnType<int8_t>(op, inputs, count, &result); break;
    case fcclUint8: reduceOwnType<uint8_t>(op, inputs, count, &result); break;
    case fcclInt32: reduceOwnType<int32_t>(op, inputs, count, &result); break;
    case fcclUint32: reduceOwnType<uint32_t>(op, inputs, count, &result); break;
    case fcclInt64: reduceOwnType<int64_t>(op, inputs, count, &result); break;
    case fcclUint64: reduceOwnType<uint64_t>(op, inputs, count, &result); break;
    case fcclFloat64: reduceOwnType<double>(op, inputs, count, &result); break;
    default: reduceInFloat(dtype, op, inputs, count, &result);
  }
  return result;
}

std::string compareElements(fcclDataType_t dtype, const void* expected, const void* actual, size_t count,
                            bool zeroSigns) {
  const size_t bytes = dtypeBytes(dtype);
  const bool floating = dtype >= fcclFloat16;
  for (size_t i = 0; i < count; ++i) {
    const char* want = static_cast<const char*>(expected) + i * bytes;
    const char* got = static_cast<const char*>(actual) + i * bytes;
    if (std::memcmp(want, got, bytes) == 0) continue;
    if (floating) {
      const double a = load(dtype, expected, i);
      const double b = load(dtype, actual, i);
      if (std::isnan(a) && std::isnan(b)) continue;
      if (!zeroSigns && a == 0 && b == 0) continue;
    }
    return fmt::format("element {} of {} {}: expected {}, got {}", i, count, dtypeName(dtype),
                       describe(dtype, expected, i), describe(dtype, actual, i));
  }
  return "";
}

std::string compareAllReduce(fcclDataType_t dtype, fcclRedOp_t op, const void* expected, const void* actual,
                             size_t count) {
  const bool fixed = op == fcclSum && (dtype == fcclFloat16 || dtype == fcclBfloat16 || dtype == fcclFloat32);
  return compareElements(dtype, expected, actual, count, fixed);
}

Bytes referenceResidual(fcclDataType_t dtype, const void* reduced, const void* residual, size_t count) {
  Bytes result(count * dtypeBytes(dtype));
  for (size_t i = 0; i < count; ++i) {
    const float sum = static_cast<float>(load(dtype, reduced, i)) + static_cast<float>(load(dtype, residual, i));
    store(dtype, result.data(), i, sum);
  }
  return result;
}

std::vector<double> referenceNorm(fcclDataType_t dtype, const void* row, const void* weight, fcclDataType_t weightDtype,
                                  int64_t hidden, float weightBias, float eps) {
  const auto count = static_cast<size_t>(hidden);
  double squares = 0;
  for (size_t i = 0; i < count; ++i) {
    const double value = load(dtype, row, i);
    squares += value * value;
  }
  // Beyond fp32's range q is Inf, and k is 0.
  if (squares > std::numeric_limits<float>::max()) squares = std::numeric_limits<double>::infinity();
  const double k = 1.0 / std::sqrt(squares / static_cast<double>(hidden) + static_cast<double>(eps));
  std::vector<double> norm(count);
  for (size_t i = 0; i < count; ++i) {
    const float factor = weightBias + static_cast<float>(load(weightDtype, weight, i));
    norm[i] = load(dtype, row, i) * k * static_cast<double>(factor);
  }
  return norm;
}

std::string compareNorm(fcclDataType_t dtype, const std::vector<double>& expected, const void* actual) {
  const double tolerance = normTolerance(static_cast<int64_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) {
    const double value = expected[i];
    const double got = load(dtype, actual, i);
    if (std::isnan(value) && std::isnan(got)) continue;
    const double slack = std::isfinite(value) ? std::fabs(value) * tolerance + kNormAbsoluteTolerance : 0;
    double bounds[2] = {};
    store(dtype, &bounds[0], 0, value - slack);
    store(dtype, &bounds[1], 0, value + slack);
    if (got >= load(dtype, &bounds[0], 0) && got <= load(dtype, &bounds[1], 0)) continue;
    return fmt::format("element {} of {} {}: expected {} within [{}, {}], got {}", i, expected.size(), dtypeName(dtype),
                       value, load(dtype, &bounds[0], 0), load(dtype, &bounds[1], 0), describe(dtype, actual, i));
  }
  return "";
}

Bytes referenceFp8(fcclDataType_t dtype, const void* norm, size_t count, float dequantScale) {
  Bytes codes(count);
  const float inverse = 1.0f / dequantScale;
  for (size_t i = 0; i < count; ++i) {
    const auto n = static_cast<float>(load(dtype, norm, i));
    const double value = std::isnan(n) ? static_cast<double>(n) : static_cast<double>(n * inverse);
    codes[i] = static_cast<uint8_t>(kE4m3.encode(value));
  }
  return codes;
}

size_t scaleBytes(int64_t tokens, int64_t hidden, fcclScaleLayout_t layout) {
  const int64_t blocks = hidden / 16;
  const auto roundUp = [](int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; };
  switch (layout) {
    case fcclScaleSwizzled128x4: return static_cast<size_t>(roundUp(tokens, 128) * roundUp(blocks, 4));
    case fcclScaleSwizzled8x4: return static_cast<size_t>(roundUp(tokens, 8) * roundUp(blocks, 4));
    case fcclScaleLinear: return static_cast<size_t>(tokens * blocks);
  }
  return 0;
}

size_t scaleOffset(int64_t row, int64_t block, int64_t hidden, fcclScaleLayout_t layout) {
  const int64_t blocks = hidden / 16;
  const int64_t tiles = (blocks + 3) / 4;
  switch (layout) {
    case fcclScaleSwizzled128x4:
      return static_cast<size_t>((row / 128) * tiles * 512 + (block / 4) * 512 + (row % 32) * 16 +
                                 ((row % 128) / 32) * 4 + block % 4);
    case fcclScaleSwizzled8x4:
      return static_cast<size_t>((row / 8) * tiles * 32 + (block / 4) * 32 + (row % 8) * 4 + block % 4);
    case fcclScaleLinear: return static_cast<size_t>(row * blocks + block);
  }
  return 0;
}

Nvfp4 referenceNvfp4(fcclDataType_t dtype, const void* norm, int64_t tokens, int64_t hidden, float globalScale,
                     fcclScaleLayout_t layout) {
  Nvfp4 result;
  result.codes.assign(static_cast<size_t>(tokens * hidden / 2), 0);
  result.scales.assign(scaleBytes(tokens, hidden, layout), 0);
  result.undefinedCode.assign(static_cast<size_t>(tokens * hidden), false);
  for (int64_t row = 0; row < tokens; ++row) {
    for (int64_t block = 0; block < hidden / 16; ++block) {
      const auto first = static_cast<size_t>(row * hidden + block * 16);
      float amax = 0;
      for (size_t i = first; i < first + 16; ++i) {
        const float magnitude = std::fabs(static_cast<float>(load(dtype, norm, i)));
        if (magnitude > amax) amax = magnitude;  // false for NaN
      }
      const float scaled = globalScale * amax;
      const float sixth = scaled / 6.0f;
      const uint32_t scaleCode = sixth > 0 ? kE4m3.encode(sixth) : 0;
      result.scales[scaleOffset(row, block, hidden, layout)] = static_cast<uint8_t>(scaleCode);
      if (scaleCode == 0) continue;  // all codes +0
      const float multiplier = globalScale / static_cast<float>(kE4m3.decode(scaleCode));
      for (size_t i = first; i < first + 16; ++i) {
        const auto n = static_cast<float>(load(dtype, norm, i));
        const float product = std::isnan(n) ? n : n * multiplier;
        if (std::isnan(product) && !std::isnan(n)) result.undefinedCode[i] = true;
        result.codes[i / 2] |= static_cast<uint8_t>(kE2m1.encode(product) << (i % 2 * 4));
      }
    }
  }
  return result;
}

}  // namespace fccl::test
