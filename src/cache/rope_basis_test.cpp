#include "cache/rope_basis.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>
#include <vector>

namespace oscar::cache {
namespace {

RopeSpec spec_of(double base, int num_pairs) {
  RopeSpec spec;
  for (int f = 0; f < num_pairs; ++f)
    spec.inv_freq.push_back(
        static_cast<float>(std::pow(base, -static_cast<double>(f) / num_pairs)));
  return spec;
}

// The polynomials that a level leaves out come to less than 5e-7 (2·J_8(1), 2·J_4(0.09),
// 2·J_2(1.1e-3) and, for 16 of them, Σ_{k ≥ 16} 2·J_k(5)); those that are there and their
// coefficients are rounded to float.
constexpr double kTolerance = 5e-7 + 16 * 0x1p-23;

// cos and sin of the pair at `place` about the middle of the tile, at x = ±(i + 0.5).
void expect_slow_pair(const RopeBasis& basis, int place, int first_block, int pairs_a_block,
                      int pair_of_block, double w) {
  for (int i = 0; i < 32; ++i) {
    double parts[2] = {0, 0};
    for (int k = 0; k < RopeBasis::kPolynomials / pairs_a_block; ++k) {
      const int lane = 2 * pairs_a_block * (k / 2) + 2 * pair_of_block + k % 2;
      parts[k % 2] += double{basis.series()[first_block * RopeBasis::kPolynomials + lane]} *
                      basis.columns()[((basis.num_fast() + k / 2) * 2 + k % 2) * 32 + i];
    }
    EXPECT_NEAR(parts[0], std::cos(w * (i + 0.5)), kTolerance) << "place " << place;
    EXPECT_NEAR(parts[1], std::sin(w * (i + 0.5)), kTolerance) << "place " << place;
  }
}

TEST(RopeBasis, ColumnsSpanEveryRotationOfATile) {
  for (const double base : {1e2, 1e4, 1e6}) {
    for (const int num_pairs : {16, 32, 64, 128}) {
      const RopeSpec spec = spec_of(base, num_pairs);
      const RopeBasis basis(spec);
      std::vector<int> seen(num_pairs, 0);
      for (int place = 0; place < basis.num_places(); ++place) {
        if (basis.pair(place) < 0) continue;
        ++seen[basis.pair(place)];
        const double w = spec.inv_freq[basis.pair(place)];
        EXPECT_NEAR(basis.middle_cos(place), std::cos(w * 31.5), 1e-12);
        EXPECT_NEAR(basis.middle_sin(place), std::sin(w * 31.5), 1e-12);
      }
      EXPECT_EQ(seen, std::vector<int>(num_pairs, 1));
      EXPECT_LE(2 * basis.num_places(), kernels::kMeanPairFloats);
      int place = basis.num_fast(), first_block = 0;
      for (int level = 0; level < RopeBasis::kNumLevels; ++level) {
        const int pairs_a_block = 1 << level;
        for (int block = 0; block < basis.num_blocks()[level]; ++block, ++first_block) {
          for (int p = 0; p < pairs_a_block; ++p, ++place) {
            if (basis.pair(place) < 0) continue;
            expect_slow_pair(basis, place, first_block, pairs_a_block, p,
                             spec.inv_freq[basis.pair(place)]);
          }
        }
      }
      EXPECT_EQ(place, basis.num_places());
      for (int i = 0; i < basis.num_fast(); ++i) {
        for (int x = 0; x < 32; ++x) {
          const double angle = double{spec.inv_freq[basis.pair(i)]} * (x + 0.5);
          EXPECT_NEAR(basis.columns()[2 * i * 32 + x], std::cos(angle), 0x1p-24);
          EXPECT_NEAR(basis.columns()[(2 * i + 1) * 32 + x], std::sin(angle), 0x1p-24);
        }
      }
    }
  }
}

TEST(RopeBasis, IsSmallForRealModels) {
  EXPECT_LE(RopeBasis(spec_of(1e6, 64)).num_columns(), 36);
  EXPECT_LE(RopeBasis(spec_of(1e4, 32)).num_columns(), 30);
  const std::array<int, RopeBasis::kNumLevels> blocks = RopeBasis(spec_of(1e6, 64)).num_blocks();
  EXPECT_LE(std::accumulate(blocks.begin(), blocks.end(), 0), 22);
  EXPECT_EQ(RopeBasis(RopeSpec{}).num_columns(), RopeBasis::kPolynomials);
}

}  // namespace
}  // namespace oscar::cache
