#include "kernels/host/reduce_functions.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/formats.h"

namespace fccl::host {
namespace {

// How a type is stored and what it is combined in. Integers are combined as unsigned, so that they wrap.
template <class Stored>
struct Plain {
  using Memory = Stored;
  using Value = Stored;
  static Value widen(Memory m) { return m; }
  static Memory narrow(Value v) { return v; }
};
struct Half {
  using Memory = uint16_t;
  using Value = float;
  static Value widen(Memory m) { return widenFp16(m); }
  static Memory narrow(Value v) { return narrowFp16(v); }
};
struct Brain {
  using Memory = uint16_t;
  using Value = float;
  static Value widen(Memory m) { return widenBf16(m); }
  static Memory narrow(Value v) { return narrowBf16(v); }
};

// Narrow unsigned types are promoted to int, whose product could overflow: always at least 32 bits unsigned.
template <class T>
using Wrapping = std::conditional_t<(sizeof(T) < 4), uint32_t, std::make_unsigned_t<T>>;

template <fcclRedOp_t op, class T>
T combine(T a, T b) {
  if constexpr (op == fcclMax) {
    if constexpr (std::is_floating_point_v<T>)
      return (a > b || std::isnan(a)) ? a : b;  // NaN of either side goes through
    return a > b ? a : b;
  } else if constexpr (op == fcclMin) {
    if constexpr (std::is_floating_point_v<T>) return (a < b || std::isnan(a)) ? a : b;
    return a < b ? a : b;
  } else if constexpr (std::is_floating_point_v<T>) {
    return op == fcclProd ? a * b : a + b;
  } else {
    const Wrapping<T> x = static_cast<std::make_unsigned_t<T>>(a);
    const Wrapping<T> y = static_cast<std::make_unsigned_t<T>>(b);
    return static_cast<T>(op == fcclProd ? x * y : x + y);
  }
}

template <class T>
T average(T sum, int ranks) {
  if constexpr (std::is_unsigned_v<T>) return static_cast<T>(sum / static_cast<unsigned>(ranks));
  return static_cast<T>(sum / static_cast<T>(ranks));
}

template <class Type, fcclRedOp_t op>
void reduce(char* out, const char* const* in, int ranks, int64_t n) {
  using Memory = typename Type::Memory;
  using Value = typename Type::Value;
  constexpr int64_t kBlock = 256;
  constexpr bool kSums = op == fcclSum || op == fcclAvg;
  Memory raw[kBlock];
  Value total[kBlock];
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = n - begin < kBlock ? n - begin : kBlock;
    const int64_t at = begin * static_cast<int64_t>(sizeof(Memory));
    const size_t bytes = static_cast<size_t>(count) * sizeof(Memory);
    std::memcpy(raw, in[0] + at, bytes);
    // From +0, so that a sum of -0 is +0 here as in the other kernels.
    for (int64_t i = 0; i < count; i++)
      total[i] = kSums ? combine<op>(Value{}, Type::widen(raw[i])) : Type::widen(raw[i]);
    for (int r = 1; r < ranks; r++) {
      std::memcpy(raw, in[r] + at, bytes);
      for (int64_t i = 0; i < count; i++) total[i] = combine<op>(total[i], Type::widen(raw[i]));
    }
    for (int64_t i = 0; i < count; i++) raw[i] = Type::narrow(op == fcclAvg ? average(total[i], ranks) : total[i]);
    std::memcpy(out + at, raw, bytes);
  }
}

template <class Type>
ReduceFunction ofType(fcclRedOp_t op) {
  switch (op) {
    case fcclSum: return reduce<Type, fcclSum>;
    case fcclProd: return reduce<Type, fcclProd>;
    case fcclMax: return reduce<Type, fcclMax>;
    case fcclMin: return reduce<Type, fcclMin>;
    case fcclAvg: return reduce<Type, fcclAvg>;
  }
  return nullptr;
}

}  // namespace

ReduceFunction findReduceFunction(fcclDataType_t dtype, fcclRedOp_t op) {
  switch (dtype) {
    case fcclInt8: return ofType<Plain<int8_t>>(op);
    case fcclUint8: return ofType<Plain<uint8_t>>(op);
    case fcclInt32: return ofType<Plain<int32_t>>(op);
    case fcclUint32: return ofType<Plain<uint32_t>>(op);
    case fcclInt64: return ofType<Plain<int64_t>>(op);
    case fcclUint64: return ofType<Plain<uint64_t>>(op);
    case fcclFloat16: return ofType<Half>(op);
    case fcclFloat32: return ofType<Plain<float>>(op);
    case fcclFloat64: return ofType<Plain<double>>(op);
    case fcclBfloat16: return ofType<Brain>(op);
  }
  return nullptr;
}

}  // namespace fccl::host
