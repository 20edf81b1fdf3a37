// The reference conversions, held against the formats' definitions: only what passes here may judge the library.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/number_formats.h"
#include "tests/support/test_data.h"

using namespace fccl::test;

namespace {

const double kInfinity = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

// The nearest code by search, as slow and as plain as the definition: of two equally near codes the even one. The code
// after the largest stands for what it would be if the format went on, so that overflow is rounding too.
uint32_t nearestBySearch(const NumberFormat& format, double magnitude) {
  uint32_t best = 0;
  double bestDistance = kInfinity;
  for (uint32_t code = 0; code <= format.largest() + 1; ++code) {
    double value = code <= format.largest() ? format.decode(code)
                                            : 2 * format.decode(format.largest()) - format.decode(format.largest() - 1);
    const double distance = std::fabs(magnitude - value);
    if (distance < bestDistance || (distance == bestDistance && code % 2 == 0)) {
      best = code;
      bestDistance = distance;
    }
  }
  return format.top == NumberFormat::Top::kIeee ? best : std::min(best, format.largest());
}

double bitsToFloat(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace

TEST_CASE("reference formats: all 256 codes of e4m3", "[formats]") {
  for (uint32_t code = 0; code < 256; ++code) {
    const double value = kE4m3.decode(code);
    INFO("code " << code);
    if ((code & 0x7f) == 0x7f) {
      REQUIRE(std::isnan(value));
      REQUIRE(std::signbit(value) == (code == 0xff));
    } else {
      const double sign = code < 128 ? 1 : -1;
      const int exponent = static_cast<int>(code >> 3) & 15;
      const double fraction = (code & 7) / 8.0;
      const double expected = exponent == 0 ? fraction * std::exp2(-6) : (1 + fraction) * std::exp2(exponent - 7);
      REQUIRE(value == sign * expected);
    }
    REQUIRE(kE4m3.encode(value) == code);
  }
  REQUIRE(kE4m3.decode(0x7e) == 448);
  REQUIRE(kE4m3.decode(0x01) == std::exp2(-9));
}

TEST_CASE("reference formats: all 16 codes of e2m1", "[formats]") {
  const double values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (uint32_t code = 0; code < 16; ++code) {
    REQUIRE(std::fabs(kE2m1.decode(code)) == values[code & 7]);
    REQUIRE(std::signbit(kE2m1.decode(code)) == (code >= 8));
    REQUIRE(kE2m1.encode(kE2m1.decode(code)) == code);
  }
  // Ties go to the even code, which is not always the even number.
  const std::vector<std::pair<double, uint32_t>> ties = {{0.25, 0}, {0.75, 2}, {1.25, 2}, {1.75, 4},
                                                         {2.5, 4},  {3.5, 6},  {5.0, 6}};
  for (auto [value, code] : ties) {
    CHECK(kE2m1.encode(value) == code);
    CHECK(kE2m1.encode(-value) == code + 8);
    CHECK(kE2m1.encode(std::nextafter(value, 100.0)) == code + (kE2m1.decode(code) < value ? 1 : 0));
    CHECK(kE2m1.encode(std::nextafter(value, 0.0)) == code - (kE2m1.decode(code) > value ? 1 : 0));
  }
}

TEST_CASE("reference formats: all 65536 values of bf16 and fp16 round-trip", "[formats]") {
  for (const NumberFormat& format : {kBfloat16, kFloat16}) {
    uint32_t wrong = 0;
    for (uint32_t code = 0; code < 65536; ++code) {
      const double value = format.decode(code);
      if (std::isnan(value)) {
        const uint32_t again = format.encode(value);
        wrong += !std::isnan(format.decode(again)) || std::signbit(value) != std::signbit(format.decode(again));
      } else {
        wrong += format.encode(value) != code;
      }
    }
    CHECK(wrong == 0);
  }
  // bf16 is the upper half of an fp32.
  uint32_t wrong = 0;
  for (uint32_t code = 0; code < 65536; ++code) {
    const double value = kBfloat16.decode(code);
    wrong += !std::isnan(value) && value != bitsToFloat(code << 16);
  }
  CHECK(wrong == 0);
  CHECK(kFloat16.decode(0x7bff) == 65504);
  CHECK(kFloat16.decode(0x0001) == std::exp2(-24));
  CHECK(kFloat16.decode(0x3c01) == 1 + std::exp2(-10));
}

TEST_CASE("reference formats: between neighbours the nearer code, at the middle the even one", "[formats]") {
  for (const NumberFormat& format : {kBfloat16, kFloat16, kE4m3, kE2m1}) {
    uint32_t wrong = 0;
    for (uint32_t code = 0; code < format.largest(); ++code) {
      const double low = format.decode(code);
      const double high = format.decode(code + 1);
      const double middle = low + (high - low) / 2;
      const uint32_t even = code % 2 == 0 ? code : code + 1;
      wrong += format.encode(middle) != even;
      wrong += format.encode(-middle) != (even | format.signBit());
      wrong += format.encode(std::nextafter(middle, 0.0)) != code;
      wrong += format.encode(std::nextafter(middle, kInfinity)) != code + 1;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("reference formats: random values against a search of all codes", "[formats]") {
  for (const NumberFormat& format : {kFloat16, kE4m3, kE2m1}) {
    const int trials = format.codes() > 256 ? 300 : 20000;
    for (int i = 0; i < trials; ++i) {
      const uint64_t bits = hash(77, static_cast<uint64_t>(i));
      const double top = 2 * std::log2(format.decode(format.largest()));
      const double magnitude = std::exp2(static_cast<double>(bits >> 11) * 0x1p-53 * 1.2 * top - 0.7 * top);
      REQUIRE(format.encode(magnitude) == nearestBySearch(format, magnitude));
    }
  }
}

TEST_CASE("reference formats: overflow, infinity, NaN and signed zero", "[formats]") {
  CHECK(kE4m3.encode(464) == 0x7e);
  CHECK(kE4m3.encode(480) == 0x7e);
  CHECK(kE4m3.encode(1e30) == 0x7e);
  CHECK(kE4m3.encode(kInfinity) == 0x7e);
  CHECK(kE4m3.encode(-kInfinity) == 0xfe);
  CHECK(kE4m3.encode(kNan) == 0x7f);
  CHECK(kE4m3.encode(std::copysign(kNan, -1.0)) == 0xff);
  CHECK(kE4m3.encode(-0.0) == 0x80);
  CHECK(kE4m3.encode(-std::exp2(-10)) == 0x80);  // half of the smallest: a tie, to zero
  CHECK(kE4m3.encode(std::exp2(-10) * 1.0001) == 0x01);
  CHECK(kE2m1.encode(kInfinity) == 7);
  CHECK(kE2m1.encode(-1e30) == 15);
  CHECK(kE2m1.encode(kNan) == 7);
  CHECK(kE2m1.encode(-0.0) == 8);
  CHECK(kE2m1.encode(-0.2) == 8);
  CHECK(kFloat16.encode(65519.99) == 0x7bff);
  CHECK(kFloat16.encode(65520) == 0x7c00);
  CHECK(kFloat16.encode(-kInfinity) == 0xfc00);
  CHECK(kBfloat16.encode(kNan) == 0x7fc0);
  CHECK(kBfloat16.encode(3.4e38) == 0x7f80);
  CHECK(kBfloat16.encode(-0.0) == 0x8000);
  CHECK(kBfloat16.encode(263) == kBfloat16.encode(264));
}
