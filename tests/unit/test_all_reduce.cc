// fcclAllReduce on ranks that are threads: every operator and type, counts around every border, every alignment.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "tests/support/catch.h"
#include "tests/support/guarded_buffer.h"
#include "tests/support/reference.h"
#include "tests/support/test_data.h"
#include "tests/support/thread_ranks.h"

using namespace fccl::test;

namespace {

constexpr int kSlotBytes = 4096;  // the smallest, so that a few thousand elements already go in chunks

constexpr fcclDataType_t kAllTypes[] = {fcclInt8,   fcclUint8,   fcclInt32,   fcclUint32,   fcclInt64,
                                        fcclUint64, fcclFloat16, fcclFloat32, fcclBfloat16, fcclFloat64};
constexpr fcclRedOp_t kAllOps[] = {fcclSum, fcclProd, fcclMax, fcclMin, fcclAvg};

struct ReduceCase {
  fcclDataType_t dtype = fcclFloat32;
  fcclRedOp_t op = fcclSum;
  size_t count = 0;
  bool inPlace = false;
  GuardedBuffer::Guard guard = GuardedBuffer::Guard::kAfter;
  size_t gap = 0;  // bytes between the buffers and what guards them

  std::string describe() const {
    return fmt::format("{} {} x{}{}{} gap {}", opName(op), dtypeName(dtype), count, inPlace ? " in place" : "",
                       guard == GuardedBuffer::Guard::kBefore ? " guarded before" : "", gap);
  }
};

// Runs one case with the given inputs and compares every byte on every rank. Each rank's gap differs, in elements, so
// that the ranks' buffers are aligned differently.
void reduceAndCheck(RankGroup& group, const ReduceCase& asked, const std::vector<Bytes>& data) {
  const size_t element = dtypeBytes(asked.dtype);
  const size_t bytes = asked.count * element;
  std::vector<GuardedBuffer> inputs;
  std::vector<GuardedBuffer> outputs;
  std::vector<const void*> at;
  for (int rank = 0; rank < group.ranks(); ++rank) {
    const Bytes& own = data[static_cast<size_t>(rank)];
    const size_t gap = asked.gap * static_cast<size_t>(rank + 1);
    inputs.emplace_back(bytes, asked.guard, gap);
    if (bytes != 0) std::memcpy(inputs.back().data(), own.data(), bytes);
    outputs.emplace_back(asked.inPlace ? 0 : bytes, asked.guard, 2 * gap);
    at.push_back(own.data());
  }
  group.run(asked.describe(), [&](Rank& rank) {
    const auto r = static_cast<size_t>(rank.rank);
    void* output = asked.inPlace ? inputs[r].data() : outputs[r].data();
    rank.ok(fcclAllReduce(inputs[r].data(), output, asked.count, asked.dtype, asked.op, rank.comm, nullptr),
            "fcclAllReduce");
    rank.expect(inputs[r].canaryWhole() && outputs[r].canaryWhole(), "canary overwritten");
    rank.expect(asked.inPlace || bytes == 0 || std::memcmp(inputs[r].data(), at[r], bytes) == 0, "input overwritten");
  });
  INFO(group.ranks() << " ranks: " << asked.describe());
  const Bytes expected = referenceAllReduce(asked.dtype, asked.op, at, asked.count);
  const uint8_t* first = asked.inPlace ? inputs[0].bytes() : outputs[0].bytes();
  const std::string wrong = compareAllReduce(asked.dtype, asked.op, expected.data(), first, asked.count);
  if (!wrong.empty()) FAIL(wrong);
  for (size_t r = 1; r < inputs.size(); ++r) {
    const uint8_t* other = asked.inPlace ? inputs[r].bytes() : outputs[r].bytes();
    if (bytes != 0 && std::memcmp(first, other, bytes) != 0) FAIL("rank " << r << " holds other bytes than rank 0");
  }
}

void reduceAndCheck(RankGroup& group, const ReduceCase& asked, uint64_t seed) {
  std::vector<Bytes> data;
  for (int rank = 0; rank < group.ranks(); ++rank) {
    Bytes& own = data.emplace_back(asked.count * dtypeBytes(asked.dtype));
    fillPlain(asked.dtype, own.data(), asked.count, seed, rank);
    // The average of integers is only exact where the sum does not wrap, and tests the division only then.
    for (size_t i = 0; asked.op == fcclAvg && asked.dtype < fcclFloat16 && i < own.size(); ++i) {
      const size_t element = dtypeBytes(asked.dtype);
      const bool negative = (own[i - i % element + element - 1] & 0x80) != 0 && asked.dtype % 2 == 0;
      if (i % element == element - 1) own[i] = negative ? 0xff : 0;
      if (element == 1)
        own[i] = static_cast<uint8_t>(hash(seed + static_cast<uint64_t>(rank), i) % 8 - (negative ? 8 : 0));
    }
  }
  reduceAndCheck(group, asked, data);
}

std::vector<size_t> allCounts(fcclDataType_t dtype) {
  return {0, 1, 2, 7, 63, 64, 65, 1000, 4099, kSlotBytes / dtypeBytes(dtype) + 1};
}

// `perRank[r]` repeated, so that both vector code and tails see it.
std::vector<Bytes> constant(fcclDataType_t dtype, size_t count, const std::vector<double>& perRank) {
  std::vector<Bytes> data;
  for (const double value : perRank) {
    Bytes& own = data.emplace_back(count * dtypeBytes(dtype));
    for (size_t i = 0; i < count; ++i) store(dtype, own.data(), i, value);
  }
  return data;
}

template <class T>
std::vector<Bytes> constantInteger(size_t count, const std::vector<T>& perRank) {
  std::vector<Bytes> data;
  for (const T value : perRank) {
    Bytes& own = data.emplace_back(count * sizeof(T));
    for (size_t i = 0; i < count; ++i) std::memcpy(own.data() + i * sizeof(T), &value, sizeof(T));
  }
  return data;
}

}  // namespace

TEST_CASE("all-reduce: all operators, types, rank counts and counts", "[all-reduce]") {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    RankGroup group(ranks, testConfig(kSlotBytes));
    uint64_t turn = 0;
    for (const fcclDataType_t dtype : kAllTypes) {
      for (const fcclRedOp_t op : kAllOps) {
        for (const size_t count : allCounts(dtype)) {
          ReduceCase asked{dtype, op, count};
          asked.inPlace = ++turn % 2 == 0;
          asked.guard = turn % 3 == 0 ? GuardedBuffer::Guard::kBefore : GuardedBuffer::Guard::kAfter;
          reduceAndCheck(group, asked, turn);
        }
      }
    }
  }
}

TEST_CASE("all-reduce: buffers of every alignment that the type allows", "[all-reduce]") {
  RankGroup group(3, testConfig(kSlotBytes));
  for (const fcclDataType_t dtype : kAllTypes) {
    const size_t element = dtypeBytes(dtype);
    for (const size_t gap : {element, 3 * element, 5 * element}) {
      for (const size_t count : {size_t{1}, size_t{67}, kSlotBytes / element * 2 + 5}) {
        for (const bool inPlace : {false, true}) {
          reduceAndCheck(group, {dtype, fcclSum, count, inPlace, GuardedBuffer::Guard::kBefore, gap}, gap + count);
        }
      }
    }
  }
}

TEST_CASE("all-reduce: slots of the default size, messages larger than all of them", "[all-reduce]") {
  RankGroup group(2);
  reduceAndCheck(group, {fcclFloat32, fcclSum, 3'000'017}, 5);
  reduceAndCheck(group, {fcclBfloat16, fcclSum, 5'000'011, true}, 6);
}

TEST_CASE("all-reduce: the sum is rounded once", "[all-reduce]") {
  // Rounded at each step, 256 + 1 in bf16 stays 256.
  RankGroup eight(8, testConfig(kSlotBytes));
  for (const size_t count : {size_t{1}, size_t{77}, size_t{5000}}) {
    const std::vector<Bytes> ones = constant(fcclBfloat16, count, {256, 1, 1, 1, 1, 1, 1, 1});
    reduceAndCheck(eight, {fcclBfloat16, fcclSum, count}, ones);
    std::vector<const void*> at;
    for (const Bytes& own : ones) at.push_back(own.data());
    REQUIRE(load(fcclBfloat16, referenceAllReduce(fcclBfloat16, fcclSum, at, 1).data(), 0) == 264);
    reduceAndCheck(eight, {fcclBfloat16, fcclAvg, count}, ones);
  }
  // In fp16 the sum of the first two is Inf.
  RankGroup three(3, testConfig(kSlotBytes));
  reduceAndCheck(three, {fcclFloat16, fcclSum, 333}, constant(fcclFloat16, 333, {65504, 65504, -65504}));
  reduceAndCheck(three, {fcclFloat16, fcclAvg, 333}, constant(fcclFloat16, 333, {65504, 65504, 65504}));
  reduceAndCheck(three, {fcclFloat16, fcclProd, 333}, constant(fcclFloat16, 333, {1000, 1000, 0.001}));
  reduceAndCheck(three, {fcclBfloat16, fcclProd, 333}, constant(fcclBfloat16, 333, {1.0078125, 1.0078125, 1.0078125}));
}

TEST_CASE("all-reduce: added in rank order", "[all-reduce]") {
  RankGroup group(4, testConfig(kSlotBytes));
  // Any other order of these gives another sum.
  for (const auto& values : {std::vector<double>{1e8, 1, -1e8, 1}, std::vector<double>{1, 1e8, -1e8, 3},
                             std::vector<double>{1, 1e8, 1, -1e8}}) {
    reduceAndCheck(group, {fcclFloat32, fcclSum, 2051}, constant(fcclFloat32, 2051, values));
    reduceAndCheck(group, {fcclFloat32, fcclAvg, 2051}, constant(fcclFloat32, 2051, values));
    reduceAndCheck(group, {fcclFloat64, fcclSum, 1029}, constant(fcclFloat64, 1029, {1e17, 1, -1e17, 1}));
  }
}

TEST_CASE("all-reduce: integers wrap around", "[all-reduce]") {
  RankGroup group(2, testConfig(kSlotBytes));
  for (const size_t count : {size_t{1}, size_t{131}}) {
    reduceAndCheck(group, {fcclInt8, fcclSum, count}, constantInteger<int8_t>(count, {120, 100}));
    reduceAndCheck(group, {fcclUint8, fcclSum, count}, constantInteger<uint8_t>(count, {200, 100}));
    reduceAndCheck(group, {fcclInt32, fcclSum, count}, constantInteger<int32_t>(count, {INT32_MAX, 1}));
    reduceAndCheck(group, {fcclInt32, fcclProd, count}, constantInteger<int32_t>(count, {INT32_MIN, -1}));
    reduceAndCheck(group, {fcclInt64, fcclSum, count}, constantInteger<int64_t>(count, {INT64_MIN, -1}));
    reduceAndCheck(group, {fcclInt64, fcclProd, count}, constantInteger<int64_t>(count, {INT64_MAX, INT64_MAX}));
    reduceAndCheck(group, {fcclUint64, fcclSum, count}, constantInteger<uint64_t>(count, {UINT64_MAX, 2}));
  }
  for (const int first : {-7, 7, -8}) {
    const auto value = static_cast<int8_t>(first);
    reduceAndCheck(group, {fcclInt8, fcclAvg, 99}, constantInteger<int8_t>(99, {value, 0}));
    reduceAndCheck(group, {fcclInt32, fcclAvg, 99}, constantInteger<int32_t>(99, {first, 0}));
  }
}

TEST_CASE("all-reduce: subnormals, signed zeros, Inf and NaN", "[all-reduce]") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const int ranks : {2, 4, 8}) {
    RankGroup group(ranks, testConfig(kSlotBytes));
    const auto others = [&](double first, double rest) {
      std::vector<double> values(static_cast<size_t>(ranks), rest);
      values[0] = first;
      return values;
    };
    for (const fcclDataType_t dtype : {fcclFloat32, fcclFloat16, fcclBfloat16, fcclFloat64}) {
      const double smallest = dtype == fcclFloat16    ? 0x1p-24
                              : dtype == fcclBfloat16 ? 0x1p-133
                              : dtype == fcclFloat32  ? 0x1p-149
                                                      : 0x1p-1074;
      for (const fcclRedOp_t op : kAllOps) {
        const size_t count = 2880;
        reduceAndCheck(group, {dtype, op, count}, constant(dtype, count, others(-smallest, 0)));
        reduceAndCheck(group, {dtype, op, count}, constant(dtype, count, others(-0.0, -0.0)));
        reduceAndCheck(group, {dtype, op, count}, constant(dtype, count, others(0.0, 0.0)));
        reduceAndCheck(group, {dtype, op, count}, constant(dtype, count, others(0.0, -0.0)));
        reduceAndCheck(group, {dtype, op, count}, constant(dtype, count, others(kInfinity, 1)));
        reduceAndCheck(group, {dtype, op, count}, constant(dtype, count, others(-kInfinity, kInfinity)));
        std::vector<double> last(static_cast<size_t>(ranks), 2);
        last.back() = kNan;
        reduceAndCheck(group, {dtype, op, count}, constant(dtype, count, others(kNan, 3)));
        reduceAndCheck(group, {dtype, op, count}, constant(dtype, count, last));
        std::vector<double> cancel(static_cast<size_t>(ranks), 0);
        cancel[0] = 1.5;
        cancel[1] = -1.5;
        reduceAndCheck(group, {dtype, op, count}, constant(dtype, count, cancel));
      }
    }
  }
}

TEST_CASE("all-reduce: every bit pattern of the 16-bit types passes", "[all-reduce]") {
  RankGroup group(2, testConfig(kSlotBytes));
  for (const fcclDataType_t dtype : {fcclFloat16, fcclBfloat16}) {
    std::vector<Bytes> data(2, Bytes(size_t{65536} * 2));
    for (uint32_t i = 0; i < 65536; ++i) {
      const auto one = static_cast<uint16_t>(i);
      std::memcpy(&data[0][size_t{2} * i], &one, 2);  // the other rank holds zeros
    }
    for (const fcclRedOp_t op : {fcclSum, fcclMax, fcclMin}) reduceAndCheck(group, {dtype, op, 65536}, data);
    for (uint32_t i = 0; i < 65536; ++i) {
      const auto one = static_cast<uint16_t>(hash(3, i));
      std::memcpy(&data[1][size_t{2} * i], &one, 2);
    }
    for (const fcclRedOp_t op : kAllOps) reduceAndCheck(group, {dtype, op, 65536}, data);
  }
}

TEST_CASE("all-reduce: count 0 takes NULL pointers and disturbs nothing", "[all-reduce]") {
  RankGroup group(4);
  for (int round = 0; round < 3; ++round) {
    group.run("count 0", [](Rank& rank) {
      rank.ok(fcclAllReduce(nullptr, nullptr, 0, fcclFloat32, fcclSum, rank.comm, nullptr), "count 0 with NULL");
    });
    reduceAndCheck(group, {fcclFloat32, fcclSum, 5}, static_cast<uint64_t>(round));
  }
}

TEST_CASE("all-reduce: 72 ranks", "[all-reduce]") {
  RankGroup group(72, testConfig(kSlotBytes));
  reduceAndCheck(group, {fcclFloat32, fcclSum, 1}, 1);
  reduceAndCheck(group, {fcclBfloat16, fcclSum, 300}, 2);
  reduceAndCheck(group, {fcclInt32, fcclMax, 71}, 3);
  reduceAndCheck(group, {fcclFloat32, fcclAvg, 1500}, 4);
}
