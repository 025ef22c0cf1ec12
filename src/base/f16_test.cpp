#include "base/f16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace oscar {
namespace {

// A half has 11 bits of mantissa and exponents down to 2^-24.
double nearest_half(double value) {
  if (value == 0) return value;
  const int exponent = std::max(std::ilogb(value), -14);
  const double step = std::ldexp(1.0, exponent - 10);
  return std::clamp(std::nearbyint(value / step) * step, -65504.0, 65504.0);
}

TEST(F16, EveryHalfSurvivesTheWayThroughFloat) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const bool special = (bits & 0x7c00) == 0x7c00;
    const float value = f16_to_float(static_cast<f16_t>(bits));
    if (special) {
      EXPECT_FALSE(std::isfinite(value)) << bits;
    } else {
      EXPECT_EQ(f16_from_float(value), bits);
    }
  }
}

TEST(F16, RoundsToNearestEven) {
  for (const double scale : {1e-9, 3e-8, 1e-6, 5e-5, 6.2e-5, 1e-3, 0.3, 1.0, 7.0, 900.0, 6e4}) {
    for (int i = -2000; i <= 2000; ++i) {
      const auto value = static_cast<float>(scale * (1 + i / 1999.0));
      EXPECT_EQ(f16_to_float(f16_from_float(value)), nearest_half(static_cast<double>(value)))
          << value;
    }
  }
  EXPECT_EQ(f16_from_float(1.0f + 0x1p-11f), f16_from_float(1.0f));  // a tie, to even
  EXPECT_EQ(f16_from_float(1.0f + 3 * 0x1p-11f), f16_from_float(1.0f + 0x1p-9f));
}

TEST(F16, SaturatesAndKeepsNaN) {
  for (const float large : {65519.9f, 65520.0f, 1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(f16_to_float(f16_from_float(large)), 65504.0f);
    EXPECT_EQ(f16_to_float(f16_from_float(-large)), -65504.0f);
  }
  EXPECT_TRUE(std::isnan(f16_to_float(f16_from_float(std::nanf("")))));
}

}  // namespace
}  // namespace oscar
