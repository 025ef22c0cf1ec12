// Truth: with rows that are off by a known amount every error follows on paper.
#include "eval/layer_errors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace oscar::eval {
namespace {

constexpr std::uint32_t kSeed = 20260103;
constexpr int kDim = 32;

// Two query heads to one KV head; queries at the last token see all keys.
calibrate::LayerStatistics layer(int num_tokens) {
  std::mt19937 random(kSeed);
  std::normal_distribution<float> normal;
  calibrate::LayerStatistics stats;
  stats.shape = {.num_q_heads = 2, .num_kv_heads = 1, .head_dim_k = kDim, .head_dim_v = kDim};
  stats.attention_scale = 0.5f;
  for (int token = 0; token < num_tokens; ++token) {
    stats.sample.key_positions.push_back(token);
    for (int i = 0; i < kDim; ++i) {
      stats.sample.keys.push_back(normal(random));
      stats.sample.values.push_back(normal(random));
    }
  }
  stats.sample.query_positions = {num_tokens - 1};
  for (int i = 0; i < 2 * kDim; ++i) stats.sample.queries.push_back(normal(random));
  return stats;
}

CachedRows exact(const calibrate::LayerStatistics& stats) {
  return {stats.sample.keys, stats.sample.values};
}

TEST(LayerErrors, ExactRowsHaveNone) {
  const calibrate::LayerStatistics stats = layer(20);
  const HeadErrors errors = head_errors(stats, exact(stats), 0, 0, 0);
  for (const double error : {errors.k_mse, errors.v_mse, errors.k_relative, errors.logit_mse,
                             errors.output_relative, errors.output_keys, errors.output_values}) {
    EXPECT_EQ(error, 0);
  }
  EXPECT_NEAR(errors.weights_kl, 0, 1e-15);
}

TEST(LayerErrors, ValuesTwiceAsLargeDoubleTheOutput) {
  const calibrate::LayerStatistics stats = layer(20);
  CachedRows rows = exact(stats);
  for (float& value : rows.values) value *= 2;
  const HeadErrors errors = head_errors(stats, rows, 0, 0, 0);
  EXPECT_NEAR(errors.output_values, 1, 1e-12);  // |2o − o|² / |o|²
  EXPECT_NEAR(errors.output_relative, 1, 1e-12);
  EXPECT_EQ(errors.output_keys, 0);
  EXPECT_EQ(errors.logit_mse, 0);
  EXPECT_EQ(errors.k_mse, 0);
}

TEST(LayerErrors, OneKeyMovedMovesItsLogitAlone) {
  const int num_tokens = 20, moved = 7;
  const calibrate::LayerStatistics stats = layer(num_tokens);
  CachedRows rows = exact(stats);
  rows.keys[moved * kDim] += 0.75f;
  const HeadErrors errors = head_errors(stats, rows, 0, 0, 0);
  EXPECT_NEAR(errors.k_mse, 0.75 * 0.75 / (num_tokens * kDim), 1e-6);
  // Two query heads: logits move by scale·q₀·0.75.
  double logit_mse = 0, kl = 0;
  for (int head = 0; head < 2; ++head) {
    const double shift = 0.5 * 0.75 * static_cast<double>(stats.sample.queries[head * kDim]);
    logit_mse += shift * shift / (2 * num_tokens);
    double sum = 0, moved_sum = 0, weight = 0;
    for (int token = 0; token < num_tokens; ++token) {
      double logit = 0;
      for (int i = 0; i < kDim; ++i) {
        logit += 0.5 * static_cast<double>(stats.sample.queries[head * kDim + i]) *
                 static_cast<double>(stats.sample.keys[token * kDim + i]);
      }
      sum += std::exp(logit);
      moved_sum += std::exp(logit + (token == moved ? shift : 0));
      if (token == moved) weight = std::exp(logit);
    }
    // Σ p log(p/p̂) = log(Ẑ/Z) − p_moved·shift
    kl += (std::log(moved_sum / sum) - weight / sum * shift) / 2;
  }
  EXPECT_NEAR(errors.logit_mse, logit_mse, 1e-6 * logit_mse + 1e-9);
  EXPECT_NEAR(errors.weights_kl, kl, 1e-5 * kl + 1e-9);  // 0.75 is added in float
  EXPECT_GT(errors.output_keys, 0);
  EXPECT_EQ(errors.output_values, 0);
  EXPECT_NEAR(errors.output_relative, errors.output_keys, 1e-12);
}

TEST(LayerErrors, WindowsAreExact) {
  const calibrate::LayerStatistics stats = layer(20);
  CachedRows rows = exact(stats);
  for (float& key : rows.keys) key += 1;
  EXPECT_GT(head_errors(stats, rows, 0, 4, 8).logit_mse, 0);
  const HeadErrors covered = head_errors(stats, rows, 0, 12, 8);  // 0 … 11 and 12 … 19
  EXPECT_EQ(covered.logit_mse, 0);
  EXPECT_EQ(covered.output_relative, 0);
  EXPECT_NEAR(covered.k_mse, 1, 1e-6);  // of the codes, wherever they are used
}

TEST(LayerErrors, AnOrthogonalTransformKeepsTheEnergy) {
  calibrate::Statistics rows;
  rows.layers[3] = layer(40);
  ModelFingerprint model;
  const std::vector<LayerChannels> channels = layer_channels(rows, model, choose_kv("quarot"));
  ASSERT_EQ(channels.size(), 1u);
  EXPECT_EQ(channels[0].layer, 3);
  for (const SideChannels& side : {channels[0].keys, channels[0].values}) {
    ASSERT_EQ(side.raw.size(), static_cast<std::size_t>(kDim));
    double raw = 0, coded = 0;
    for (int i = 0; i < kDim; ++i) {
      raw += side.raw[i];
      coded += side.coded[i];
      if (i > 0) {
        EXPECT_LE(side.coded[i], side.coded[i - 1]);
      }
    }
    EXPECT_NEAR(coded, raw, 1e-5 * raw);  // the transform's entries are floats
    EXPECT_NE(side.raw[0], side.coded[0]);
  }
  const std::vector<HeadErrors> errors = layer_errors(rows, model, choose_kv("quarot:k4v4"), 1);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_EQ(errors[0].layer, 3);
  // Four bits on Gaussian rows: about 1 % of the energy for uniform levels over the row's range.
  EXPECT_GT(errors[0].k_relative, 1e-3);
  EXPECT_LT(errors[0].k_relative, 5e-2);
}

}  // namespace
}  // namespace oscar::eval
