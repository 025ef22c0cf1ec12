#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "kernels/kernels_test_support.h"

namespace oscar::kernels {
namespace {

// A strided product, so that a wrong stride shows.
std::vector<float> transform(const KernelSet& set, const std::vector<float>& x,
                             const std::vector<float>& matrix, int head_dim, int num_rows) {
  const std::int64_t x_stride = head_dim + 3, y_stride = head_dim + 5;
  std::vector<float> y(static_cast<std::size_t>(num_rows * y_stride), 7.0f);
  set.transform_rows({x.data(), matrix.data(), y.data(), num_rows, x_stride, y_stride, head_dim});
  return y;
}

TEST(Transform, EverySetGivesTheDefinedSumsBitForBit) {
  std::mt19937_64 random = seeded(31);
  for (const int head_dim : kHeadDims) {
    const auto size = static_cast<std::size_t>(head_dim);
    const std::vector<float> matrix = normal_values(size * size, random);
    for (const int num_rows : {1, 2, 3, 8, 19}) {
      const std::vector<float> x =
          normal_values(static_cast<std::size_t>(num_rows) * (size + 3), random);
      std::vector<float> expected(static_cast<std::size_t>(num_rows) * (size + 5), 7.0f);
      for (std::size_t r = 0; r < static_cast<std::size_t>(num_rows); ++r) {
        for (std::size_t j = 0; j < size; ++j) {
          float sum = 0;
          for (std::size_t i = 0; i < size; ++i) {
            const float product = x[r * (size + 3) + i] * matrix[i * size + j];
            sum = sum + product;
          }
          expected[r * (size + 5) + j] = sum;
        }
      }
      for (const KernelSet* set : runnable_sets()) {
        const std::vector<float> y = transform(*set, x, matrix, head_dim, num_rows);
        ASSERT_EQ(std::memcmp(y.data(), expected.data(), 4 * y.size()), 0)
            << set->name << " head_dim " << head_dim << " rows " << num_rows;
      }
    }
  }
}

// A cyclic shift is orthogonal, exact and not its own transpose.
TEST(Transform, RowsAreVectorsTimesTheMatrix) {
  constexpr std::size_t kSize = 80;
  std::vector<float> shift(kSize * kSize, 0.0f), x(kSize);
  for (std::size_t i = 0; i < kSize; ++i) {
    shift[i * kSize + (i + 1) % kSize] = 1;
    x[i] = static_cast<float>(i);
  }
  for (const KernelSet* set : runnable_sets()) {
    std::vector<float> y(kSize);
    set->transform_rows({x.data(), shift.data(), y.data(), 1, kSize, kSize, kSize});
    for (std::size_t i = 0; i < kSize; ++i) EXPECT_EQ(y[(i + 1) % kSize], x[i]) << set->name;
  }
}

TEST(Transform, ErrorAgainstFp64IsThatOfAFloatSum) {
  std::mt19937_64 random = seeded(32);
  constexpr std::size_t kSize = 256;
  const std::vector<float> matrix = normal_values(kSize * kSize, random);
  const std::vector<float> x = normal_values(kSize, random);
  for (const KernelSet* set : runnable_sets()) {
    std::vector<float> y(kSize);
    set->transform_rows({x.data(), matrix.data(), y.data(), 1, kSize, kSize, kSize});
    for (std::size_t j = 0; j < kSize; ++j) {
      double sum = 0, magnitude = 0;
      for (std::size_t i = 0; i < kSize; ++i) {
        sum += double{x[i]} * matrix[i * kSize + j];
        magnitude += std::abs(double{x[i]} * matrix[i * kSize + j]);
      }
      // n products and n additions, each off by 2^−24 of a partial sum at most.
      ASSERT_LE(std::abs(y[j] - sum), (kSize + 1) * kEps * magnitude) << set->name;
    }
  }
}

}  // namespace
}  // namespace oscar::kernels
