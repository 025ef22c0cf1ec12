#include "kernels/rope_table.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "kernels/kernels_test_support.h"
#include "reference/attention.h"
#include "reference/rotation.h"

namespace oscar {
namespace {

constexpr int kHeadDim = 80, kPairs = 32;  // partial rotation: 16 channels stay
constexpr std::int32_t kPositions[] = {0, 1, 63, 64, 65, 4095, 32768, 131071};

RopeSpec spec_with(RopePairing pairing, float magnitude) {
  RopeSpec spec{pairing, {}, magnitude};
  for (int f = 0; f < kPairs; ++f)
    spec.inv_freq.push_back(std::pow(1e-4f, static_cast<float>(f) / kPairs));
  return spec;
}

std::vector<RopeSpec> specs() {
  return {spec_with(RopePairing::kHalfSplit, 1.0f), spec_with(RopePairing::kInterleaved, 1.25f)};
}

std::vector<double> widen(const std::vector<float>& x) { return {x.begin(), x.end()}; }

TEST(RopeTable, RotationIsTheReferencesToRounding) {
  std::mt19937_64 random = kernels::seeded(61);
  for (const RopeSpec& spec : specs()) {
    // The last positions lie past the table's end.
    const RopeTable table(spec, 40000);
    for (const std::int32_t position : kPositions) {
      const std::vector<float> x = kernels::normal_values(kHeadDim, random);
      std::vector<float> y = x;
      table.rotate(y.data(), position);
      std::vector<double> truth = widen(x);
      reference::rotate_by_position(truth, spec, position);
      for (std::size_t c = 0; c < kHeadDim; ++c) {
        // One rounding to single precision, of a value no larger than the pair's norm.
        ASSERT_NEAR(y[c], truth[c], 1.01 * kernels::kEps * 8 * spec.magnitude) << position;
      }
      table.rotate_back(y.data(), position);
      for (std::size_t c = 0; c < kHeadDim; ++c) ASSERT_NEAR(y[c], x[c], 3 * kernels::kEps * 8);

      if (position == 0) continue;  // has no sign: rotate_back is asked for by name
      std::vector<float> by_sign = x;
      table.rotate(by_sign.data(), position);
      table.rotate(by_sign.data(), -position);
      ASSERT_EQ(by_sign, y) << "a negative position rotates back";
    }
  }
}

TEST(RopeTable, FoldGivesTheLogitTermOfEveryToken) {
  std::mt19937_64 random = kernels::seeded(62);
  for (const RopeSpec& spec : specs()) {
    const RopeTable table(spec, 131072);
    for (const std::int32_t start : {0, 64, 1000, 130944}) {
      const std::vector<float> q = kernels::normal_values(kHeadDim, random);
      const std::vector<float> mean = kernels::normal_values(kHeadDim, random);
      std::vector<float> coefficients(2 * kPairs);
      const float constant =
          table.fold(q.data(), mean.data(), kHeadDim, start, coefficients.data());
      for (int lo = 0; lo < kRopeTile; ++lo) {
        double term = constant;
        for (std::size_t i = 0; i < 2 * kPairs; ++i) {
          term +=
              double{coefficients[i]} * table.tile()[static_cast<std::size_t>(lo) * 2 * kPairs + i];
        }
        std::vector<double> rotated = widen(mean);
        reference::rotate_by_position(rotated, spec, start + lo);
        // 64 coefficients and 64 table entries, each rounded once; coefficients are below 20.
        ASSERT_NEAR(term, reference::dot(widen(q), rotated), 2 * 64 * kernels::kEps * 20);
      }
    }
  }
}

TEST(RopeTable, RefusesWhatCannotBeRotated) {
  EXPECT_THROW(RopeTable(spec_with(RopePairing::kHalfSplit, 1.0f), -1), Error);
  EXPECT_THROW(RopeTable(spec_with(RopePairing::kHalfSplit, 0.0f), 10), Error);
}

}  // namespace
}  // namespace oscar
