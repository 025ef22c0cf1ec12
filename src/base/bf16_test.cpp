#include "base/bf16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace oscar {
namespace {

float from_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

TEST(Bf16, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto stored = static_cast<bf16_t>(bits);
    const float value = bf16_to_float(stored);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(bf16_from_float(value)))) << bits;
    } else {
      ASSERT_EQ(bf16_from_float(value), stored) << bits;
    }
  }
}

// The nearer neighbour, and of two equally near ones the even: checked in exact arithmetic on the
// discarded half.
TEST(Bf16, RoundsToNearestEven) {
  for (const std::uint32_t high : {0x3f80u, 0x3f81u, 0x0000u, 0x0001u, 0xbf80u, 0xc2ffu, 0x7f7eu}) {
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const bool up = low > 0x8000u || (low == 0x8000u && (high & 1u) != 0);
      EXPECT_EQ(bf16_from_float(from_bits(high << 16 | low)), high + (up ? 1u : 0u))
          << std::hex << high << " " << low;
    }
  }
}

TEST(Bf16, EdgesOfTheRange) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(bf16_from_float(kInf), 0x7f80);
  EXPECT_EQ(bf16_from_float(-kInf), 0xff80);
  // Halfway past the largest BF16 value, 3.3895e38, IEEE rounds to infinity.
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(bf16_from_float(from_bits(0x7f7f7fff)), 0x7f7f);
  EXPECT_EQ(bf16_from_float(-0.0f), 0x8000);
  // A NaN whose upper half alone would read as infinity.
  EXPECT_TRUE(std::isnan(bf16_to_float(bf16_from_float(from_bits(0x7f800001)))));
  EXPECT_TRUE(std::isnan(bf16_to_float(bf16_from_float(from_bits(0xffffffff)))));
}

}  // namespace
}  // namespace oscar
