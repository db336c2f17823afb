// SPDX-License-Identifier: Apache-2.0
// Tests the 16-bit formats against their definition: values by std::ldexp, rounding by distance to the two neighbours.
#include "runtime/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "runtime/random.h"

namespace shiftrt {
namespace {

struct HalfFormat {
  using Type = Float16;
  static constexpr int kExponentBits = 5, kMantissaBits = 10;
};
struct BrainFormat {
  using Type = BFloat16;
  static constexpr int kExponentBits = 8, kMantissaBits = 7;
};

// The value of the positive bit pattern `bits` in IEEE 754. The pattern of infinity gives the value that would follow
// the largest finite one, because rounding to infinity is defined by it.
template <typename F>
double Value(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> F::kMantissaBits), bias = (1 << (F::kExponentBits - 1)) - 1;
  const double mantissa = bits & ((1u << F::kMantissaBits) - 1);
  const double one = std::ldexp(1.0, F::kMantissaBits);
  return exponent == 0 ? std::ldexp(mantissa, 1 - bias - F::kMantissaBits)
                       : std::ldexp(one + mantissa, exponent - bias - F::kMantissaBits);
}

// Bit patterns are ordered like their values. Finds the neighbour below by bisection, then takes the nearer of the two
// neighbours, on a tie the even one.
template <typename F>
uint32_t Nearest(double magnitude) {
  uint32_t low = 0, high = ((1u << F::kExponentBits) - 1) << F::kMantissaBits;
  if (magnitude >= Value<F>(high)) return high;
  while (high - low > 1) (Value<F>((low + high) / 2) <= magnitude ? low : high) = (low + high) / 2;
  const double below = magnitude - Value<F>(low), above = Value<F>(high) - magnitude;
  return below < above || (below == above && low % 2 == 0) ? low : high;
}

template <typename F>
class Sixteen : public testing::Test {
 protected:
  using Type = typename F::Type;
  static constexpr uint32_t kInfinity = ((1u << F::kExponentBits) - 1) << F::kMantissaBits;

  static void ExpectNearest(float value) {
    const uint32_t expected = (std::signbit(value) ? 0x8000u : 0u) | Nearest<F>(std::abs(static_cast<double>(value)));
    ASSERT_EQ(Type(value).bits, expected) << std::hexfloat << value;
  }
};
using Formats = testing::Types<HalfFormat, BrainFormat>;
TYPED_TEST_SUITE(Sixteen, Formats);

TYPED_TEST(Sixteen, EveryPatternWidensToItsValueAndBack) {
  using Type = typename TypeParam::Type;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    Type stored;
    stored.bits = static_cast<uint16_t>(bits);
    const auto wide = static_cast<float>(stored);
    const uint32_t magnitude = bits & 0x7fffu;
    ASSERT_EQ(std::signbit(wide), bits >= 0x8000) << bits;
    if (magnitude > TestFixture::kInfinity) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
      ASSERT_GT(Type(wide).bits & 0x7fffu, TestFixture::kInfinity) << bits;
      continue;
    }
    ASSERT_EQ(std::abs(wide), magnitude == TestFixture::kInfinity ? std::numeric_limits<float>::infinity()
                                                                  : static_cast<float>(Value<TypeParam>(magnitude)))
        << bits;
    ASSERT_EQ(Type(wide).bits, bits);
  }
}

// Tests values between every two neighbours: just above the lower one, around the middle, and just below the upper one.
TYPED_TEST(Sixteen, RoundsToNearestEvenBetweenAllNeighbours) {
  for (uint32_t bits = 0; bits < TestFixture::kInfinity; ++bits) {
    const double low = Value<TypeParam>(bits), high = Value<TypeParam>(bits + 1);
    const double middle_exact = (low + high) / 2;
    if (middle_exact > std::numeric_limits<float>::max()) continue;
    const auto middle = static_cast<float>(middle_exact), lowest = static_cast<float>(low);
    const float inf = std::numeric_limits<float>::infinity();
    for (const float value : {std::nextafter(lowest, inf), std::nextafter(middle, 0.0f), middle,
                              std::nextafter(middle, inf), lowest + 0.75f * (middle - lowest)}) {
      TestFixture::ExpectNearest(value);
      TestFixture::ExpectNearest(-value);
    }
  }
}

TYPED_TEST(Sixteen, RoundsAnyFloat) {
  Random random(1);
  for (int i = 0; i < 200000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(random.Next()));
    if (std::isfinite(value)) TestFixture::ExpectNearest(value);
  }
}

TYPED_TEST(Sixteen, ExtremesAndNotANumber) {
  using Type = typename TypeParam::Type;
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Type(inf).bits, TestFixture::kInfinity);
  EXPECT_EQ(Type(-inf).bits, 0x8000u | TestFixture::kInfinity);
  EXPECT_EQ(Type(std::numeric_limits<float>::max()).bits, TestFixture::kInfinity);
  EXPECT_EQ(Type(0.0f).bits, 0u);
  EXPECT_EQ(Type(-0.0f).bits, 0x8000u);
  TestFixture::ExpectNearest(std::numeric_limits<float>::denorm_min());
  for (const uint32_t nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu})
    EXPECT_TRUE(std::isnan(static_cast<float>(Type(std::bit_cast<float>(nan))))) << nan;
}

TEST(Float16, OverflowStartsHalfAStepAboveTheLargest) {
  EXPECT_EQ(Float16(65504.0f).bits, 0x7bffu);
  EXPECT_EQ(Float16(std::nextafter(65520.0f, 0.0f)).bits, 0x7bffu);
  EXPECT_EQ(Float16(65520.0f).bits, 0x7c00u);
}

TEST(DType, NamesAndSizes) {
  EXPECT_STREQ(Name(DType::kFloat32), "float32");
  EXPECT_STREQ(Name(DType::kFloat16), "float16");
  EXPECT_STREQ(Name(DType::kBFloat16), "bfloat16");
  EXPECT_STREQ(Name(DType::kFloat64), "float64");
  EXPECT_EQ(SizeOf(DType::kFloat64), 8u);
  EXPECT_EQ(SizeOf(DType::kFloat32), 4u);
  EXPECT_EQ(SizeOf(DType::kFloat16), 2u);
  EXPECT_EQ(SizeOf(DType::kBFloat16), 2u);
}

}  // namespace
}  // namespace shiftrt
