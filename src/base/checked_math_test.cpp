#include "base/checked_math.h"

#include <gtest/gtest.h>

namespace oscar {
namespace {

constexpr std::uint64_t kMax = UINT64_MAX;

TEST(CheckedMath, AddsUpToTheLastValue) {
  EXPECT_EQ(checked_add(2, 3), 5u);
  EXPECT_EQ(checked_add(kMax, 0), kMax);
  EXPECT_EQ(checked_add(kMax - 1, 1), kMax);
  EXPECT_FALSE(checked_add(kMax, 1));
  EXPECT_FALSE(checked_add(kMax, kMax));
}

TEST(CheckedMath, MultipliesUpToTheLastValue) {
  EXPECT_EQ(checked_mul(6, 7), 42u);
  EXPECT_EQ(checked_mul(kMax, 0), 0u);
  EXPECT_EQ(checked_mul(0, kMax), 0u);
  EXPECT_EQ(checked_mul(kMax, 1), kMax);
  EXPECT_EQ(checked_mul(kMax / 3, 3), kMax);  // 2^64 − 1 is a multiple of 3
  EXPECT_FALSE(checked_mul(kMax / 3 + 1, 3));
  EXPECT_FALSE(checked_mul(std::uint64_t{1} << 32, std::uint64_t{1} << 32));
}

}  // namespace
}  // namespace oscar
