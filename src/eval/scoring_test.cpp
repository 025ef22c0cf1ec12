// Truth: the same quantities computed directly in fp64 from the definition.
// Tolerance 1e-6: an exponential is off by at most 3e-7 relative, Z = Σe^x and Σe^x·d inherit that,
// and |log p − log q| stays below 3 on these logits on average.
#include "eval/scoring.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace oscar::eval {
namespace {

constexpr double kTolerance = 1e-6;
constexpr std::uint32_t kSeed = 20260101;

std::vector<double> log_softmax(const std::vector<float>& logits) {
  double max = -INFINITY, sum = 0;
  for (const float x : logits) max = std::max(max, static_cast<double>(x));
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - max);
  std::vector<double> result;
  for (const float x : logits) result.push_back(static_cast<double>(x) - max - std::log(sum));
  return result;
}

double direct_kl(const std::vector<float>& p_logits, const std::vector<float>& q_logits) {
  const std::vector<double> p = log_softmax(p_logits), q = log_softmax(q_logits);
  double kl = 0;
  for (std::size_t i = 0; i < p.size(); ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
  return kl;
}

std::vector<float> random_logits(std::size_t size, float spread, std::mt19937* random) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> logits(size);
  for (float& x : logits) x = normal(*random);
  return logits;
}

class ScoringSizes : public testing::TestWithParam<std::size_t> {};

TEST_P(ScoringSizes, AgreesWithDirectComputation) {
  std::mt19937 random(kSeed);
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  const std::size_t size = GetParam();
  for (const float noise : {0.0f, 0.01f, 0.3f, 2.0f}) {
    const std::vector<float> reference = random_logits(size, 3.0f, &random);
    std::vector<float> candidate = random_logits(size, noise, &random);
    for (std::size_t i = 0; i < size; ++i) candidate[i] += reference[i];
    const auto next = static_cast<std::int32_t>(random() % size);
    const PositionScore score =
        score_position(reference.data(), candidate.data(), static_cast<std::int64_t>(size), next);
    EXPECT_TRUE(score.finite);
    EXPECT_NEAR(score.kl, direct_kl(reference, candidate), kTolerance) << "noise " << noise;
    const double log_prob = log_softmax(candidate)[static_cast<std::size_t>(next)];
    EXPECT_NEAR(score.log_prob, log_prob, kTolerance);
    EXPECT_NEAR(log_probability(candidate.data(), static_cast<std::int64_t>(size), next), log_prob,
                kTolerance);
  }
}

// Lengths around the vector width, and the vocabularies of the models that the project runs.
INSTANTIATE_TEST_SUITE_P(Vocabularies, ScoringSizes,
                         testing::Values(1, 2, 7, 8, 9, 1000, 49152, 151936));

TEST(Scoring, EqualLogitsHaveNoDivergence) {
  const std::vector<float> logits = {-5.0f, 80.0f, 3.5f, -90.0f};
  const PositionScore score = score_position(logits.data(), logits.data(), 4, 2);
  EXPECT_EQ(score.kl, 0.0);
  EXPECT_TRUE(score.same_top);
}

TEST(Scoring, AShiftOfAllLogitsChangesNothing) {
  const std::vector<float> reference = {0.25f, -1.5f, 2.0f, 0.0f};
  std::vector<float> candidate = reference;
  for (float& x : candidate) x += 64.0f;
  const PositionScore score = score_position(reference.data(), candidate.data(), 4, 0);
  EXPECT_NEAR(score.kl, 0.0, 1e-12);
  EXPECT_TRUE(score.same_top);
}

TEST(Scoring, TopTokenIsTheLikeliest) {
  const std::vector<float> reference = {0.0f, 1.0f, 2.0f};
  const std::vector<float> candidate = {0.0f, 2.0f, 1.0f};
  EXPECT_FALSE(score_position(reference.data(), candidate.data(), 3, 0).same_top);
}

TEST(Scoring, BrokenLogitsAreSeen) {
  const std::vector<float> good(100, 1.0f);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const std::size_t where : {std::size_t{0}, std::size_t{50}, std::size_t{99}}) {
      std::vector<float> broken = good;
      broken[where] = bad;
      EXPECT_FALSE(score_position(good.data(), broken.data(), 100, 0).finite) << where;
      EXPECT_FALSE(score_position(broken.data(), good.data(), 100, 0).finite) << where;
      EXPECT_FALSE(std::isfinite(log_probability(broken.data(), 100, 0))) << where;
    }
  }
}

TEST(Scoring, SummaryOfKnownValues) {
  std::vector<double> values;
  for (int i = 99; i >= 0; --i) values.push_back(i);
  values[0] = 1000;  // the largest, 99 before
  const KlSummary summary = summarize_kl(values);
  EXPECT_DOUBLE_EQ(summary.mean, (4950.0 - 99.0 + 1000.0) / 100.0);
  EXPECT_DOUBLE_EQ(summary.median, 49.5);
  EXPECT_DOUBLE_EQ(summary.trimmed10, 49.5);  // 10 to 89
  EXPECT_DOUBLE_EQ(summary.p99, 98);          // the 99th of 100
}

TEST(Scoring, SummaryOfFewValues) {
  const KlSummary one = summarize_kl({0.25});
  EXPECT_DOUBLE_EQ(one.mean, 0.25);
  EXPECT_DOUBLE_EQ(one.median, 0.25);
  EXPECT_DOUBLE_EQ(one.trimmed10, 0.25);
  EXPECT_DOUBLE_EQ(one.p99, 0.25);
  const KlSummary ten = summarize_kl({9, 8, 7, 6, 5, 4, 3, 2, 1, 1000});
  EXPECT_DOUBLE_EQ(ten.trimmed10, 5.5);  // 2 to 9: one at each end goes
}

}  // namespace
}  // namespace oscar::eval
