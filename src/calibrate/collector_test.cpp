#include "calibrate/collector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "calibrate/calibrate_test_support.h"

namespace oscar::calibrate {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// max |a − b| / max |b|
double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = std::max(difference, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return difference / largest;
}

class CollectorTest : public ::testing::Test {
 protected:
  inline static const RopeTable table_{synthetic_rope(64), 4096};
  inline static const SyntheticLayer layer_ = make_synthetic({}, &table_);  // seed 1
};

// Products are summed in float over at most 256 rows, then in double: the relative error of a sum
// is below 256·2⁻²⁴ = 1.5e-5 at worst and about √256·2⁻²⁴ = 1e-6 as rounding goes.
constexpr double kCovarianceTolerance = 1e-6;

TEST_F(CollectorTest, CovariancesEqualADirectSum) {
  Collector collector({});
  feed(layer_, 3, 100, &table_, &collector);
  const LayerStatistics& stats = collector.statistics().layers.at(3);
  for (int kv_head = 0; kv_head < 2; ++kv_head) {
    std::vector<double> c_q(64 * 64), mean(64), square(64), value_mean(64);
    for (int t = 0; t < layer_.num_tokens; ++t) {
      for (int q_head = 2 * kv_head; q_head < 2 * kv_head + 2; ++q_head) {
        const float* q = &layer_.queries[(std::size_t(t) * 4 + q_head) * 64];
        for (int i = 0; i < 64; ++i) {
          for (int j = 0; j < 64; ++j) c_q[i * 64 + j] += double(q[i]) * double(q[j]);
        }
      }
      std::vector<float> key(64);
      std::copy_n(&layer_.keys[(std::size_t(t) * 2 + kv_head) * 64], 64, key.data());
      table_.rotate_back(key.data(), t);
      for (int i = 0; i < 64; ++i) {
        mean[i] += double(key[i]);
        square[i] += double(key[i]) * double(key[i]);
        value_mean[i] += double(layer_.values[(std::size_t(t) * 2 + kv_head) * 64 + i]);
      }
    }
    const HeadStatistics& head = stats.heads[kv_head];
    EXPECT_EQ(head.num_tokens, layer_.num_tokens);
    EXPECT_EQ(head.num_values, layer_.num_tokens);
    EXPECT_EQ(head.num_queries, 2 * layer_.num_tokens);
    EXPECT_LT(relative_difference(head.query_covariance, c_q), kCovarianceTolerance);
    EXPECT_LT(relative_difference(head.key_mean_sum, mean), 1e-12);
    EXPECT_LT(relative_difference(head.key_square_sum, square), 1e-12);
    EXPECT_LT(relative_difference(head.value_mean_sum, value_mean), 1e-12);
  }
}

// C_S against VᵀSᵀSV with S written out in full.
TEST(Collector, OutputCovarianceIsTheScoreWeightedValueCovariance) {
  SyntheticOptions options;
  options.shape = {.num_q_heads = 2, .num_kv_heads = 1, .head_dim_k = 32, .head_dim_v = 48};
  options.num_tokens = 60;
  const SyntheticLayer layer = make_synthetic(options, nullptr);
  Collector collector({});
  feed(layer, 0, 7, nullptr, &collector);

  std::vector<double> c_s(48 * 48);
  for (int q_head = 0; q_head < 2; ++q_head) {
    std::vector<double> s(60 * 60);
    for (int t = 0; t < 60; ++t) {
      double sum = 0;
      for (int j = 0; j <= t; ++j) {
        double logit = 0;
        for (int i = 0; i < 32; ++i) {
          logit += double(layer.queries[(std::size_t(t) * 2 + q_head) * 32 + i]) *
                   double(layer.keys[std::size_t(j) * 32 + i]);
        }
        sum += s[t * 60 + j] = std::exp(logit * double(layer.scale));
      }
      for (int j = 0; j <= t; ++j) s[t * 60 + j] /= sum;
    }
    std::vector<double> gram(60 * 60);  // SᵀS
    for (int i = 0; i < 60; ++i) {
      for (int j = 0; j < 60; ++j) {
        for (int t = 0; t < 60; ++t) gram[i * 60 + j] += s[t * 60 + i] * s[t * 60 + j];
      }
    }
    for (int a = 0; a < 48; ++a) {
      for (int b = 0; b < 48; ++b) {
        for (int i = 0; i < 60; ++i) {
          for (int j = 0; j < 60; ++j) {
            c_s[a * 48 + b] += double(layer.values[i * 48 + a]) * gram[i * 60 + j] *
                               double(layer.values[j * 48 + b]);
          }
        }
      }
    }
  }
  // Outputs are given in float, so their products carry 2·2⁻²⁴ more.
  const HeadStatistics& head = collector.statistics().layers.at(0).heads[0];
  EXPECT_LT(relative_difference(head.output_covariance, c_s), 2e-6);
}

TEST_F(CollectorTest, StatisticsAndSampleDoNotDependOnTheChunks) {
  const CollectorOptions options{.sampled_keys = 100, .sampled_queries = 50, .seed = 9};
  Collector whole(options);
  feed(layer_, 0, layer_.num_tokens, &table_, &whole);
  const LayerStatistics& right = whole.statistics().layers.at(0);
  EXPECT_EQ(right.sample.key_positions.size(), 100u);
  EXPECT_EQ(right.sample.query_positions.size(), 50u);
  for (const int chunk : {1, 7, 64, 512}) {
    SCOPED_TRACE("chunk " + std::to_string(chunk));
    Collector collector(options);
    feed(layer_, 0, chunk, &table_, &collector);
    const LayerStatistics& stats = collector.statistics().layers.at(0);
    EXPECT_EQ(stats.sample.key_positions, right.sample.key_positions);
    EXPECT_EQ(stats.sample.keys, right.sample.keys);
    EXPECT_EQ(stats.sample.values, right.sample.values);
    EXPECT_EQ(stats.sample.query_positions, right.sample.query_positions);
    EXPECT_EQ(stats.sample.queries, right.sample.queries);
    for (int kv_head = 0; kv_head < 2; ++kv_head) {
      const HeadStatistics &a = stats.heads[kv_head], &b = right.heads[kv_head];
      EXPECT_LT(relative_difference(a.query_covariance, b.query_covariance), kCovarianceTolerance);
      EXPECT_LT(relative_difference(a.output_covariance, b.output_covariance),
                kCovarianceTolerance);
      EXPECT_EQ(a.key_mean_sum, b.key_mean_sum);
      EXPECT_EQ(a.value_mean_sum, b.value_mean_sum);
      EXPECT_EQ(a.num_queries, b.num_queries);
    }
  }
}

TEST_F(CollectorTest, EveryLayerSamplesTheSameTokens) {
  const CollectorOptions options{.sampled_keys = 100, .sampled_queries = 50, .seed = 9};
  Collector collector(options);
  feed(layer_, 0, 64, &table_, &collector);
  feed(layer_, 5, 100, &table_, &collector);
  const LayerSample& a = collector.statistics().layers.at(0).sample;
  const LayerSample& b = collector.statistics().layers.at(5).sample;
  EXPECT_EQ(a.key_positions, b.key_positions);
  EXPECT_EQ(a.query_positions, b.query_positions);
  // Keys and values of a place belong to one token.
  for (std::size_t i = 0; i < a.key_positions.size(); ++i) {
    const std::size_t token = static_cast<std::size_t>(a.key_positions[i]);
    EXPECT_EQ(a.keys[i * 128], layer_.keys[token * 128]);
    EXPECT_EQ(a.values[i * 128 + 127], layer_.values[token * 128 + 127]);
  }
  Collector other({.sampled_keys = 100, .sampled_queries = 50, .seed = 10});
  feed(layer_, 0, 64, &table_, &other);
  EXPECT_NE(other.statistics().layers.at(0).sample.key_positions, a.key_positions);
}

// The places after the sinks are a uniform choice: mean position of 192 of 4096 tokens within 5
// standard errors (4032/√12/√192 = 84) of the middle.
TEST(Collector, SampleIsSpreadOverTheText) {
  Collector collector({.sampled_keys = 256, .sampled_queries = 256, .seed = 4});
  const LayerShape shape{.num_q_heads = 1, .num_kv_heads = 1, .head_dim_k = 1, .head_dim_v = 1};
  for (std::int32_t t = 0; t < 4096; ++t) {
    const float row = static_cast<float>(t);
    collector.on_keys(0, shape, nullptr, nullptr, &row, 1, 1, &t, 1);
  }
  const LayerSample& sample = collector.statistics().layers.at(0).sample;
  ASSERT_EQ(sample.key_positions.size(), 256u);
  EXPECT_EQ(sample.num_sinks, 64);
  double sum = 0;
  for (int i = 0; i < 256; ++i) {
    if (i < 64) {
      EXPECT_EQ(sample.key_positions[i], i);
    } else {
      EXPECT_GE(sample.key_positions[i], 64);
      sum += sample.key_positions[i];
    }
  }
  EXPECT_NEAR(sum / 192, (64 + 4095) / 2.0, 5 * 84.0);
}

std::size_t num_numbers(const LayerStatistics& stats) {
  std::size_t count = stats.sample.keys.capacity() + stats.sample.values.capacity() +
                      stats.sample.queries.capacity() + stats.sample.key_positions.capacity() +
                      stats.sample.query_positions.capacity();
  for (const HeadStatistics& head : stats.heads) {
    count += head.query_covariance.capacity() + head.output_covariance.capacity() +
             head.key_mean_sum.capacity() + head.key_square_sum.capacity() +
             head.value_mean_sum.capacity();
  }
  return count;
}

TEST_F(CollectorTest, MemoryDoesNotDependOnTheLength) {
  Collector collector({.sampled_keys = 64, .sampled_queries = 32, .seed = 1});
  feed(layer_, 0, 64, &table_, &collector);
  const std::size_t once = num_numbers(collector.statistics().layers.at(0));
  for (int i = 0; i < 5; ++i) feed(layer_, 0, 64, &table_, &collector);
  EXPECT_EQ(num_numbers(collector.statistics().layers.at(0)), once);
  EXPECT_EQ(collector.statistics().layers.at(0).num_tokens, 6 * layer_.num_tokens);
}

TEST_F(CollectorTest, NonFiniteRowsAreCountedAndLeftOut) {
  SyntheticLayer bad = layer_;
  bad.keys[(std::size_t{10} * 2 + 1) * 64 + 5] = kNaN;
  bad.values[(std::size_t{11} * 2 + 0) * 64] = std::numeric_limits<float>::infinity();
  bad.queries[(std::size_t{12} * 4 + 3) * 64] = kNaN;
  bad.outputs[(std::size_t{13} * 4 + 3) * 64] = -std::numeric_limits<float>::infinity();
  Collector collector({});
  feed(bad, 0, 64, &table_, &collector);
  const LayerStatistics& stats = collector.statistics().layers.at(0);
  EXPECT_EQ(collector.statistics().num_non_finite, 4);
  EXPECT_EQ(stats.heads[0].num_tokens, 1024);
  EXPECT_EQ(stats.heads[1].num_tokens, 1023);
  EXPECT_EQ(stats.heads[0].num_values, 1023);
  EXPECT_EQ(stats.heads[0].num_queries, 2048);
  EXPECT_EQ(stats.heads[1].num_queries, 2046);
  for (const HeadStatistics& head : stats.heads) {
    for (const auto* sums : {&head.query_covariance, &head.output_covariance, &head.key_mean_sum,
                             &head.key_square_sum, &head.value_mean_sum}) {
      for (const double sum : *sums) ASSERT_TRUE(std::isfinite(sum));
    }
  }
}

TEST_F(CollectorTest, RefusesALayerThatChanges) {
  Collector collector({});
  feed(layer_, 2, 512, &table_, &collector);
  LayerShape other = layer_.shape;
  other.head_dim_k = 128;
  const std::int32_t position = 0;
  try {
    collector.on_keys(2, other, nullptr, nullptr, layer_.keys.data(), 256, 128, &position, 1);
    FAIL() << "a changed head size was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_STREQ(error.what(), "layer 2: head_dim_k was 64 and is now 128; it must stay the same");
  }
  EXPECT_THROW(collector.on_keys(2, layer_.shape, nullptr, nullptr, layer_.keys.data(), 128, 64,
                                 &position, 1),
               Error);
  EXPECT_THROW(Collector({.sampled_keys = 0}), Error);
}

}  // namespace
}  // namespace oscar::calibrate
