#include "eval/calibration_run.h"

#include <gtest/gtest.h>

#include <random>

namespace oscar::eval {
namespace {

using Shares = std::vector<std::int64_t>;

TEST(ShareTokens, EvenWhereTextsAreLongEnough) {
  EXPECT_EQ(share_tokens({1000, 1000, 1000}, 300), (Shares{100, 100, 100}));
  EXPECT_EQ(share_tokens({5000}, 300), (Shares{300}));
}

TEST(ShareTokens, WhatAShortTextLeavesGoesToTheOthers) {
  EXPECT_EQ(share_tokens({1000, 10, 1000}, 300), (Shares{145, 10, 145}));
  EXPECT_EQ(share_tokens({10, 20, 30}, 300), (Shares{10, 20, 30}));
}

TEST(ShareTokens, TheSumIsWhatIsWantedOrAllThereIs) {
  EXPECT_EQ(share_tokens({7, 8, 9}, 20), (Shares{6, 7, 7}));
  EXPECT_EQ(share_tokens({0, 8}, 100), (Shares{0, 8}));
}

// Keys N(0, 1) in 128 channels, with an offset of the given norm on two of them.
calibrate::LayerStatistics layer_with_mean(double norm, std::mt19937* random) {
  constexpr int kHeadDim = 128, kNumKeys = 512;
  calibrate::LayerStatistics layer;
  layer.shape = {1, 1, kHeadDim, kHeadDim};
  layer.heads.resize(1);
  std::vector<double>& sum = layer.heads[0].key_mean_sum;
  sum.assign(kHeadDim, 0);
  layer.heads[0].num_tokens = kNumKeys;
  std::normal_distribution<float> normal(0.0f, 1.0f);
  for (int key = 0; key < kNumKeys; ++key) {
    layer.sample.key_positions.push_back(key);
    for (int channel = 0; channel < kHeadDim; ++channel) {
      float x = normal(*random);
      if (channel == 7 || channel == 71) x += static_cast<float>(norm / std::sqrt(2.0));
      layer.sample.keys.push_back(x);
      sum[static_cast<std::size_t>(channel)] += static_cast<double>(x);
    }
  }
  return layer;
}

TEST(LargeMeanWarnings, NameTheLayerAndTheFigure) {
  constexpr std::uint32_t kSeed = 15;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  calibrate::Statistics statistics;
  statistics.layers[0] = layer_with_mean(921, &random);  // about 81 deviations of √128
  statistics.layers[1] = layer_with_mean(20, &random);
  const std::vector<std::string> warnings = large_mean_warnings(statistics, Method::kOscar);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0].find("layer 0: the mean key is 81."), 0u) << warnings[0];
  EXPECT_NE(warnings[0].find("oscar-plus"), std::string::npos);
}

}  // namespace
}  // namespace oscar::eval
