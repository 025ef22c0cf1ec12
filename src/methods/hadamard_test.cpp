#include "methods/hadamard.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace oscar::methods {
namespace {

class HadamardTest : public ::testing::TestWithParam<int> {};

TEST_P(HadamardTest, IsOrthogonal) {
  const int dim = GetParam();
  const std::vector<double> m = hadamard_times_p_double(dim);
  for (int i = 0; i < dim; ++i) {
    for (int j = 0; j < dim; ++j) {
      double dot = 0;
      for (int k = 0; k < dim; ++k) dot += m[i * dim + k] * m[j * dim + k];
      ASSERT_NEAR(dot, i == j ? 1.0 : 0.0, dim * 1e-15) << i << ", " << j;
    }
  }
}

// No channel dominates an output: every entry of the mix is at most √2 (Hartley's peak) times 1/√d.
TEST_P(HadamardTest, MixesEveryChannelIntoEveryOther) {
  const int dim = GetParam();
  const bool power_of_two = (dim & (dim - 1)) == 0;
  for (const double entry : hadamard_times_p_double(dim)) {
    if (power_of_two) {
      ASSERT_DOUBLE_EQ(std::abs(entry), 1.0 / std::sqrt(dim));
    } else {
      ASSERT_LE(std::abs(entry), std::sqrt(2.0 / dim) + 1e-15);
    }
  }
}

TEST_P(HadamardTest, FloatFormIsTheRoundedDouble) {
  const std::vector<double> exact = hadamard_times_p_double(GetParam());
  const std::vector<float> rounded = hadamard_times_p(GetParam());
  ASSERT_EQ(rounded.size(), exact.size());
  for (std::size_t i = 0; i < exact.size(); ++i) {
    ASSERT_EQ(rounded[i], static_cast<float>(exact[i]));
  }
}

INSTANTIATE_TEST_SUITE_P(HeadSizes, HadamardTest,
                         ::testing::Values(32, 48, 64, 80, 96, 112, 128, 192, 256));

// Columns of H in bit-reversed order: for 8 they are 0 4 2 6 1 5 3 7, and column j of H has the
// sign (−1)^popcount(i & j).
TEST(Hadamard, ColumnsAreInBitReversedOrder) {
  constexpr int kOrder[] = {0, 4, 2, 6, 1, 5, 3, 7};
  constexpr int kSigns[] = {1, -1, -1, 1, -1, 1, 1, -1};  // parity of 0..7
  const std::vector<double> m = hadamard_times_p_double(8);
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 8; ++j) {
      EXPECT_DOUBLE_EQ(m[i * 8 + j], kSigns[i & kOrder[j]] / std::sqrt(8.0)) << i << ", " << j;
    }
  }
}

TEST(Hadamard, RefusesAHeadSizeOfZero) { EXPECT_THROW(hadamard_times_p(0), Error); }

}  // namespace
}  // namespace oscar::methods
