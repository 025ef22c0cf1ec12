// Truth: the standard error of a mean. Of n independent values it is σ/√n, and the 95 % interval is
// ±1.96 of it; of values that come in runs of r equal ones it is σ/√(n/r).
#include "eval/bootstrap.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace oscar::eval {
namespace {

constexpr std::uint32_t kSeed = 20260102;
// Percentiles of 1000 resampled means stray by about √(p(1−p)/1000)/density: 6 % of the width for
// both ends together; the sample's own deviation strays by 1/√(2n) more. Three times that.
constexpr double kTolerance = 0.2;

std::vector<double> runs(std::int64_t num_runs, std::int64_t run) {
  std::mt19937 random(kSeed);
  std::normal_distribution<double> normal(5.0, 2.0);
  std::vector<double> values;
  for (std::int64_t i = 0; i < num_runs; ++i) {
    values.insert(values.end(), static_cast<std::size_t>(run), normal(random));
  }
  return values;
}

double width(const Interval& interval) { return interval.high - interval.low; }

TEST(Bootstrap, IndependentValuesHaveTheStandardError) {
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const Interval interval = bootstrap_mean(runs(2000, 1), {});
  const double expected = 2 * 1.96 * 2.0 / std::sqrt(2000.0);
  EXPECT_NEAR(width(interval), expected, kTolerance * expected);
  EXPECT_LT(interval.low, 5.0 + expected);
  EXPECT_GT(interval.high, 5.0 - expected);
}

TEST(Bootstrap, BlocksSeeThatNeighboursAreAlike) {
  const std::vector<double> values = runs(500, 16);
  BootstrapOptions options;
  const double naive = width(bootstrap_mean(values, options));
  options.block_length = 64;  // several runs, so that most runs are drawn whole
  const double blocked = width(bootstrap_mean(values, options));
  const double expected = 2 * 1.96 * 2.0 / std::sqrt(500.0);
  EXPECT_NEAR(blocked, expected, (kTolerance + 16.0 / 64.0) * expected);  // runs cut at both ends
  EXPECT_NEAR(naive, expected / 4, kTolerance * expected / 4);
}

TEST(Bootstrap, OneSeedGivesOneInterval) {
  const std::vector<double> values = runs(100, 1);
  BootstrapOptions options;
  const Interval first = bootstrap_mean(values, options), again = bootstrap_mean(values, options);
  EXPECT_EQ(first.low, again.low);
  EXPECT_EQ(first.high, again.high);
  options.seed = 2;
  EXPECT_NE(bootstrap_mean(values, options).low, first.low);
}

TEST(Bootstrap, EqualValuesHaveNoWidth) {
  BootstrapOptions options;
  options.block_length = 32;
  for (const std::size_t count : {1u, 2u, 31u, 33u}) {
    const Interval interval = bootstrap_mean(std::vector<double>(count, 0.25), options);
    EXPECT_DOUBLE_EQ(interval.low, 0.25) << count;
    EXPECT_DOUBLE_EQ(interval.high, 0.25) << count;
  }
}

}  // namespace
}  // namespace oscar::eval
