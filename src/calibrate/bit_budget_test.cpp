#include "calibrate/bit_budget.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/error.h"
#include "base/test_files.h"
#include "calibrate/calibrate_test_support.h"
#include "calibrate/methods.h"

namespace oscar::calibrate {
namespace {

// oscar-plus at head size 64: 2.25, 3.25 and 4.25 stored bits for 2, 3 and 4.
Artefact with_losses(const std::vector<std::vector<float>>& keys,
                     const std::vector<std::vector<float>>& values) {
  std::vector<LayerIndexShape> shapes;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    shapes.push_back({static_cast<int>(i),
                      {.num_q_heads = 4, .num_kv_heads = 2, .head_dim_k = 64, .head_dim_v = 64}});
  }
  Artefact artefact = make_uncalibrated(Method::kOscarPlus, {}, shapes);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    artefact.layers[i].k_losses = keys[i];
    artefact.layers[i].v_losses = values[i];
  }
  return artefact;
}

std::vector<int> bits_of(const Artefact& artefact) {
  std::vector<int> bits;
  for (const ArtefactLayer& layer : artefact.layers) {
    bits.insert(bits.end(), {layer.k_bits, layer.v_bits});
  }
  return bits;
}

TEST(BitBudget, StoredBitsCountScales) {
  Artefact artefact = with_losses({{1, 0.3f, 0.1f}}, {{1, 0.3f, 0.1f}});
  EXPECT_EQ(stored_bits(artefact), 2.25);
  artefact.layers[0].k_bits = 4;
  artefact.layers[0].v_bits = 3;
  EXPECT_EQ(stored_bits(artefact), 3.75);
}

TEST(BitBudget, GoesWhereTheLossFallsMost) {
  // A step of one side of one of two layers is a quarter of a bit.
  Artefact artefact =
      with_losses({{8, 2, 0.5f}, {1, 0.25f, 0.06f}}, {{0.4f, 0.1f, 0.02f}, {0.2f, 0.05f, 0.01f}});
  assign_bits(2.25, &artefact);
  EXPECT_EQ(bits_of(artefact), (std::vector<int>{2, 2, 2, 2}));
  assign_bits(2.5, &artefact);
  EXPECT_EQ(bits_of(artefact), (std::vector<int>{3, 2, 2, 2}));
  assign_bits(2.75, &artefact);
  EXPECT_EQ(bits_of(artefact), (std::vector<int>{4, 2, 2, 2}));
  assign_bits(3.0, &artefact);
  EXPECT_EQ(bits_of(artefact), (std::vector<int>{4, 2, 3, 2}));
  assign_bits(4.25, &artefact);
  EXPECT_EQ(bits_of(artefact), (std::vector<int>{4, 4, 4, 4}));
  assign_bits(9, &artefact);
  EXPECT_EQ(bits_of(artefact), (std::vector<int>{4, 4, 4, 4}));
  EXPECT_FLOAT_EQ(static_cast<float>(predicted_loss(artefact)), 0.5f + 0.06f + 0.02f + 0.01f);
}

// A third bit that gains little does not hide a fourth that gains much.
TEST(BitBudget, SeesBeyondTheNextStep) {
  Artefact artefact = with_losses({{8, 7.9f, 0}, {1, 0.1f, 0}}, {{0, 0, 0}, {0, 0, 0}});
  assign_bits(2.75, &artefact);
  EXPECT_EQ(bits_of(artefact), (std::vector<int>{4, 2, 2, 2}));
}

// With losses that fall ever less, greedy steps are the best of all assignments of that cost.
TEST(BitBudget, NoOtherBitsOfThatCostLoseLess) {
  std::mt19937_64 random(11);
  std::uniform_real_distribution<float> uniform(0.1f, 1.0f), fall(0.1f, 0.4f);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<float>> losses;
    for (int side = 0; side < 6; ++side) {
      const float two = uniform(random);
      // The second step gains less than the first: 1 − a > a − a·a/2 for a below 1/2.
      const float three = two * fall(random), four = three * 0.5f;
      losses.push_back({two, three, four});
    }
    Artefact best =
        with_losses({losses[0], losses[1], losses[2]}, {losses[3], losses[4], losses[5]});
    const double budget = 2.25 + static_cast<double>(round % 13) / 6;
    assign_bits(budget, &best);
    EXPECT_LE(stored_bits(best), budget + 1e-9);
    const double cost = stored_bits(best);
    Artefact other = best;
    for (int code = 0; code < 729; ++code) {  // 3^6
      int rest = code;
      for (ArtefactLayer& layer : other.layers) {
        for (int* bits : {&layer.k_bits, &layer.v_bits}) {
          *bits = 2 + rest % 3;
          rest /= 3;
        }
      }
      if (stored_bits(other) > cost + 1e-9) continue;
      EXPECT_GE(predicted_loss(other), predicted_loss(best) - 1e-6);
    }
  }
}

TEST(BitBudget, RefusesWhatCannotBeHad) {
  const Artefact artefact = with_losses({{1, 0.3f, 0.1f}}, {{1, 0.3f, 0.1f}});
  expect_error(ErrorCode::kInvalidArgument, {"--bits 2.2", "oscar-plus", "at least 2.25"},
               [&] { check_budget(2.2, artefact); });
  check_budget(2.25, artefact);
  const Artefact kivi = make_uncalibrated(
      Method::kKivi, {},
      {{0, {.num_q_heads = 4, .num_kv_heads = 2, .head_dim_k = 64, .head_dim_v = 64}}});
  expect_error(ErrorCode::kInvalidArgument, {"--bits", "kivi", "same bits in every layer"},
               [&] { check_budget(3, kivi); });
}

TEST(BitBudget, LossesAreScaledToWhatWasMeasured) {
  Artefact artefact = with_losses({{0.5f, 0.1f, 0.2f}, {0, 0, 0}}, {{2, 1, 0.5f}, {1, 1, 1}});
  scale_losses({{.keys = 5, .values = 0.02}, {.keys = 3, .values = 0}}, &artefact);
  EXPECT_EQ(artefact.layers[0].k_losses, (std::vector<float>{5, 1, 1}));  // never more with more
  EXPECT_FLOAT_EQ(artefact.layers[0].v_losses[0], 0.02f);
  EXPECT_FLOAT_EQ(artefact.layers[0].v_losses[2], 0.005f);
  EXPECT_EQ(artefact.layers[1].k_losses, (std::vector<float>{0, 0, 0}));
  EXPECT_EQ(artefact.layers[1].v_losses, (std::vector<float>{0, 0, 0}));
}

TEST(BitBudget, FittedLossesFallWithBits) {
  SyntheticOptions options;
  options.num_tokens = 512;
  Collector collector({});
  feed(make_synthetic(options, nullptr), 0, 128, nullptr, &collector);
  const Artefact plain = fit(collector.statistics(), {}, {.method = Method::kOscarPlus});
  EXPECT_TRUE(plain.layers[0].k_losses.empty() && plain.layers[0].v_losses.empty());
  const Artefact artefact =
      fit(collector.statistics(), {}, {.method = Method::kOscarPlus, .with_losses = true});
  EXPECT_EQ(plain.layers[0].k_transform, artefact.layers[0].k_transform);
  EXPECT_EQ(plain.layers[0].k_clip, artefact.layers[0].k_clip);
  for (const auto* losses : {&artefact.layers[0].k_losses, &artefact.layers[0].v_losses}) {
    ASSERT_EQ(losses->size(), 3u);
    // Squared errors of Gaussian rows at 2, 3 and 4 bits are about .12, .037 and .012 of their
    // power.
    for (int i = 1; i < 3; ++i) {
      EXPECT_LT((*losses)[i], 0.5f * (*losses)[i - 1]);
      EXPECT_GT((*losses)[i], 0.1f * (*losses)[i - 1]);
    }
  }
}

}  // namespace
}  // namespace oscar::calibrate
