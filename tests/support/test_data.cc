#include "tests/support/test_data.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/support/number_formats.h"

namespace fccl::test {
namespace {

// Decoding all codes once makes the references fast enough for large cases.
const std::vector<float>& decoded(const NumberFormat& format) {
  static const std::array<std::vector<float>, 2> tables = [] {
    std::array<std::vector<float>, 2> made;
    for (int i = 0; i < 2; ++i) {
      const NumberFormat& each = i == 0 ? kBfloat16 : kFloat16;
      for (uint32_t code = 0; code < 65536; ++code) made[i].push_back(static_cast<float>(each.decode(code)));
    }
    return made;
  }();
  return tables[format.exponentBits == kBfloat16.exponentBits ? 0 : 1];
}

template <class T>
T read(const void* buffer, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(buffer) + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void write(void* buffer, size_t index, T value) {
  std::memcpy(static_cast<char*>(buffer) + index * sizeof(T), &value, sizeof(T));
}

double specialValue(fcclDataType_t dtype, uint64_t seed, int rank, int ranks, uint64_t row, uint64_t column) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double plain = inputValue(DataKind::kPlain, dtype, seed, rank, ranks, row, column);
  const int chosen = static_cast<int>(row % static_cast<uint64_t>(ranks));
  const double smallest = dtype == fcclFloat16 ? 0x1p-24 : dtype == fcclBfloat16 ? 0x1p-133 : 0x1p-149;
  switch (row % 11) {
    case 0:  // everything zero
      return 0.0;
    case 1:  // everything -0
      return -0.0;
    case 2:  // one NaN, from one rank
      return rank == chosen && column == 5 ? std::numeric_limits<double>::quiet_NaN() : plain;
    case 3:  // one Inf
      return rank == chosen && column == 3 ? kInfinity : plain;
    case 4:  // Inf and -Inf meet
      if (column != 2 || ranks < 2) return plain;
      return rank == 0 ? kInfinity : rank == ranks - 1 ? -kInfinity : plain;
    case 5:  // the smallest subnormal, negative, on one rank, +0 on the others
      return rank == chosen ? -smallest : 0.0;
    case 6:  // subnormals
      return smallest * std::floor(8 * uniform(seed + 31 * static_cast<uint64_t>(rank), row * 8191 + column));
    case 7:  // x and -x: sums to zero
      if (ranks < 2) return 0.0;
      if (rank > 1) return 0.0;
      return (rank == 0 ? 1 : -1) * inputValue(DataKind::kPlain, dtype, seed, 0, ranks, row, column);
    case 8:  // alternating zeros
      return (column + static_cast<uint64_t>(rank)) % 2 == 0 ? 0.0 : -0.0;
    default: return plain;
  }
}

}  // namespace

uint64_t hash(uint64_t seed, uint64_t index) {
  uint64_t x = seed * 0x9e3779b97f4a7c15ull + index * 0xd1342543de82ef95ull + 0x632be59bd9b4e019ull;
  for (int round = 0; round < 2; ++round) {
    x ^= x >> 32;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 29;
  }
  return x ^ (x >> 32);
}

double uniform(uint64_t seed, uint64_t index) { return static_cast<double>(hash(seed, index) >> 11) * 0x1p-52 - 1.0; }

size_t dtypeBytes(fcclDataType_t dtype) {
  switch (dtype) {
    case fcclInt8:
    case fcclUint8: return 1;
    case fcclFloat16:
    case fcclBfloat16: return 2;
    case fcclInt32:
    case fcclUint32:
    case fcclFloat32: return 4;
    default: return 8;
  }
}

const char* dtypeName(fcclDataType_t dtype) {
  static const char* const names[] = {"int8",   "uint8",   "int32",   "uint32",  "int64",
                                      "uint64", "float16", "float32", "float64", "bfloat16"};
  return names[dtype];
}

const char* opName(fcclRedOp_t op) {
  static const char* const names[] = {"sum", "prod", "max", "min", "avg"};
  return names[op];
}

const char* patternName(fcclFusionPattern_t pattern) {
  static const char* const names[] = {"ALL_REDUCE",
                                      "RMS_NORM",
                                      "RESIDUAL_RMS_NORM",
                                      "RESIDUAL_RMS_NORM_QUANT_FP8",
                                      "RESIDUAL_RMS_NORM_OUT_QUANT_FP8",
                                      "RESIDUAL_RMS_NORM_QUANT_NVFP4",
                                      "RESIDUAL_RMS_NORM_OUT_QUANT_NVFP4"};
  return names[pattern];
}

const char* strategyName(fcclStrategy_t strategy) {
  static const char* const names[] = {"NCCL",    "MIN_LATENCY",  "UB", "AUTO",          "ONESHOT",
                                      "TWOSHOT", "LOWPRECISION", "?",  "NCCL_SYMMETRIC"};
  return names[strategy];
}

double load(fcclDataType_t dtype, const void* buffer, size_t index) {
  switch (dtype) {
    case fcclInt8: return read<int8_t>(buffer, index);
    case fcclUint8: return read<uint8_t>(buffer, index);
    case fcclInt32: return read<int32_t>(buffer, index);
    case fcclUint32: return read<uint32_t>(buffer, index);
    case fcclInt64: return static_cast<double>(read<int64_t>(buffer, index));
    case fcclUint64: return static_cast<double>(read<uint64_t>(buffer, index));
    case fcclFloat16: return decoded(kFloat16)[read<uint16_t>(buffer, index)];
    case fcclBfloat16: return decoded(kBfloat16)[read<uint16_t>(buffer, index)];
    case fcclFloat32: return read<float>(buffer, index);
    case fcclFloat64: return read<double>(buffer, index);
  }
  std::abort();
}

void store(fcclDataType_t dtype, void* buffer, size_t index, double value) {
  switch (dtype) {
    case fcclFloat16: return write(buffer, index, static_cast<uint16_t>(kFloat16.encode(value)));
    case fcclBfloat16: return write(buffer, index, static_cast<uint16_t>(kBfloat16.encode(value)));
    case fcclFloat32: return write(buffer, index, static_cast<float>(value));
    case fcclFloat64: return write(buffer, index, value);
    default: std::abort();
  }
}

double inputValue(DataKind kind, fcclDataType_t dtype, uint64_t seed, int rank, int ranks, uint64_t row,
                  uint64_t column) {
  const uint64_t stream = seed * 1000003 + static_cast<uint64_t>(rank) * 7919 + 17;
  const uint64_t index = row * 1048583 + column;
  switch (kind) {
    case DataKind::kPlain:
      return uniform(stream, index) * std::exp2(static_cast<double>(hash(stream + 1, index) % 5) - 2);
    case DataKind::kCancellation: {
      // fp16 ends at 65504; big enough there is 30000.
      const double big = dtype == fcclFloat16 ? 30000 : 1e8;
      const double parts[4] = {big, 1 + 0.5 * uniform(stream, index), -big, 0.25 * uniform(stream, index)};
      return parts[(static_cast<uint64_t>(rank) + hash(seed, index)) % 4];
    }
    case DataKind::kSpecial: return specialValue(dtype, seed, rank, ranks, row, column);
  }
  return 0;
}

void fillPlain(fcclDataType_t dtype, void* buffer, size_t count, uint64_t seed, int rank) {
  const uint64_t stream = seed * 1000003 + static_cast<uint64_t>(rank) * 7919 + 17;
  const bool floating = dtype >= fcclFloat16;
  const size_t bytes = dtypeBytes(dtype);
  for (size_t i = 0; i < count; ++i) {
    if (floating) {
      store(dtype, buffer, i, inputValue(DataKind::kPlain, dtype, seed, rank, 1, 0, i));
    } else {
      const uint64_t bits = hash(stream, i);
      std::memcpy(static_cast<char*>(buffer) + i * bytes, &bits, bytes);
    }
  }
}

std::string hexBytes(const void* bytes, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += fmt::format("{:02x}", static_cast<const unsigned char*>(bytes)[i]);
  return text;
}

}  // namespace fccl::test
