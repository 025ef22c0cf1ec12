#include "cache/rope_basis.h"

#include <gtest/gtest.h>

#include <cmath>

namespace oscar::cache {
namespace {

RopeSpec spec_of(double base, int num_pairs) {
  RopeSpec spec;
  for (int f = 0; f < num_pairs; ++f)
    spec.inv_freq.push_back(
        static_cast<float>(std::pow(base, -static_cast<double>(f) / num_pairs)));
  return spec;
}

// 16 polynomials are off by Σ_{k ≥ 16} 2·J_k(5) < 5e-7, and each of them and of its coefficients is
// rounded to float.
constexpr double kTolerance = 5e-7 + 16 * 0x1p-23;

TEST(RopeBasis, ColumnsSpanEveryRotationOfATile) {
  for (const double base : {1e2, 1e4, 1e6}) {
    for (const int num_pairs : {16, 32, 64, 128}) {
      const RopeSpec spec = spec_of(base, num_pairs);
      const RopeBasis basis(spec);
      EXPECT_EQ(basis.num_fast() + basis.num_slow(), num_pairs);
      for (int i = 0; i < basis.num_slow(); ++i) {
        const double w = spec.inv_freq[basis.slow_pair(i)];
        EXPECT_NEAR(basis.middle_cos(i), std::cos(w * 31.5), 1e-12);
        EXPECT_NEAR(basis.middle_sin(i), std::sin(w * 31.5), 1e-12);
        for (int j = 0; j < kRopeTile; ++j) {
          double parts[2] = {0, 0};  // cos, sin about the middle
          for (int k = 0; k < RopeBasis::kPolynomials; ++k) {
            parts[k % 2] += double{basis.chebyshev()[i * RopeBasis::kPolynomials + k]} *
                            basis.columns()[(2 * basis.num_fast() + k) * kRopeTile + j];
          }
          EXPECT_NEAR(parts[0], std::cos(w * (j - 31.5)), kTolerance);
          EXPECT_NEAR(parts[1], std::sin(w * (j - 31.5)), kTolerance);
        }
      }
      for (int i = 0; i < basis.num_fast(); ++i) {
        for (int j = 0; j < kRopeTile; ++j) {
          const double angle = double{spec.inv_freq[basis.fast_pair(i)]} * j;
          EXPECT_NEAR(basis.columns()[2 * i * kRopeTile + j], std::cos(angle), 0x1p-24);
          EXPECT_NEAR(basis.columns()[(2 * i + 1) * kRopeTile + j], std::sin(angle), 0x1p-24);
        }
      }
    }
  }
}

TEST(RopeBasis, IsSmallForRealModels) {
  EXPECT_LE(RopeBasis(spec_of(1e6, 64)).num_columns(), 36);
  EXPECT_LE(RopeBasis(spec_of(1e4, 32)).num_columns(), 30);
  EXPECT_EQ(RopeBasis(RopeSpec{}).num_columns(), RopeBasis::kPolynomials);
}

}  // namespace
}  // namespace oscar::cache
