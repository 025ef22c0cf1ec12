// dot_tile, accumulate_tile and softmax_tile against fp64.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/kernels_test_support.h"

namespace oscar::kernels {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();

struct TileShape {
  int num_rows, num_tokens, head_dim;
};

std::vector<TileShape> tile_shapes() {
  std::vector<TileShape> shapes;
  for (const int head_dim : kHeadDims) {
    for (const int num_rows : {1, 2, 5, 7, 12, 13, 31}) {
      for (const int num_tokens : {1, 3, 16, 17, 33, 63, 64}) {
        shapes.push_back({num_rows, num_tokens, head_dim});
      }
    }
  }
  return shapes;
}

TEST(DotTile, MatchesFp64) {
  std::mt19937_64 random = seeded(41);
  for (const auto& [rows, tokens, head_dim] : tile_shapes()) {
    const int stride = head_dim + 1, logits_stride = tokens + 2;
    const std::vector<float> q = normal_values(static_cast<std::size_t>(rows * stride), random);
    const std::vector<float> k = normal_values(static_cast<std::size_t>(tokens * stride), random);
    for (const KernelSet* set : runnable_sets()) {
      for (const bool accumulate : {false, true}) {
        std::vector<float> logits(static_cast<std::size_t>(rows * logits_stride), 3.0f);
        set->dot_tile({q.data(), k.data(), logits.data(), rows, tokens, head_dim, stride, stride,
                       logits_stride, accumulate});
        for (int r = 0; r < rows; ++r) {
          for (int t = 0; t < logits_stride; ++t) {
            double sum = accumulate || t >= tokens ? 3 : 0, magnitude = 3;
            for (int d = 0; d < head_dim && t < tokens; ++d) {
              const double term = double{q[static_cast<std::size_t>(r * stride + d)]} *
                                  k[static_cast<std::size_t>(t * stride + d)];
              sum += term;
              magnitude += std::abs(term);
            }
            ASSERT_NEAR(logits[static_cast<std::size_t>(r * logits_stride + t)], sum,
                        (head_dim + 2) * kEps * magnitude)
                << set->name << " rows " << rows << " tokens " << tokens << " d " << head_dim;
          }
        }
      }
    }
  }
}

TEST(AccumulateTile, MatchesFp64) {
  std::mt19937_64 random = seeded(42);
  for (const auto& [rows, tokens, head_dim] : tile_shapes()) {
    const int stride = head_dim + 1, p_stride = tokens + 2;
    const std::vector<float> p = normal_values(static_cast<std::size_t>(rows * p_stride), random);
    const std::vector<float> v = normal_values(static_cast<std::size_t>(tokens * stride), random);
    const std::vector<float> before =
        normal_values(static_cast<std::size_t>(rows * stride), random);
    for (const KernelSet* set : runnable_sets()) {
      std::vector<float> out = before;
      set->accumulate_tile(
          {p.data(), v.data(), out.data(), rows, tokens, head_dim, p_stride, stride, stride});
      for (int r = 0; r < rows; ++r) {
        for (int d = 0; d < stride; ++d) {
          const auto index = static_cast<std::size_t>(r * stride + d);
          double sum = before[index], magnitude = std::abs(sum);
          for (int t = 0; t < tokens && d < head_dim; ++t) {
            const double term = double{p[static_cast<std::size_t>(r * p_stride + t)]} *
                                v[static_cast<std::size_t>(t * stride + d)];
            sum += term;
            magnitude += std::abs(term);
          }
          ASSERT_NEAR(out[index], sum, (tokens + 1) * kEps * magnitude)
              << set->name << " rows " << rows << " tokens " << tokens << " d " << head_dim;
        }
      }
    }
  }
}

TEST(SoftmaxTile, TilesMergeToTheWholeSoftmax) {
  std::mt19937_64 random = seeded(43);
  for (const KernelSet* set : runnable_sets()) {
    for (const int tokens : {1, 5, 8, 16, 23, 64}) {
      constexpr int kRows = 3, kTiles = 4;
      const int stride = tokens + 1;
      std::vector<float> max(kRows, kHidden), sum(kRows, 0.0f), rescale(kRows);
      std::vector<double> true_sum(kRows, 0.0), true_max(kRows, -1e300);
      for (int tile = 0; tile < kTiles; ++tile) {
        std::vector<float> logits = normal_values(static_cast<std::size_t>(kRows * stride), random);
        for (float& logit : logits) logit *= 20;
        if (tokens > 2) logits[1] = kHidden;
        const std::vector<float> before = logits, old_max = max;
        set->softmax_tile(
            {logits.data(), max.data(), sum.data(), rescale.data(), kRows, tokens, stride});
        for (int r = 0; r < kRows; ++r) {
          const auto row = static_cast<std::size_t>(r);
          double new_max = true_max[row];
          for (int t = 0; t < tokens; ++t) {
            new_max = std::max(new_max, double{before[static_cast<std::size_t>(r * stride + t)]});
          }
          ASSERT_EQ(max[row], new_max) << set->name;
          true_sum[row] *= std::exp(true_max[row] - new_max);
          for (int t = 0; t < tokens; ++t) {
            const auto index = static_cast<std::size_t>(r * stride + t);
            // In fp64 from the difference that single precision sees: its rounding belongs to the
            // logit.
            const double weight = std::exp(double{before[index] - max[row]});
            true_sum[row] += weight;
            // exp is good to 2 ulp and 0 below e^−64.
            ASSERT_NEAR(logits[index], weight, 4 * kEps * weight + 2e-28)
                << set->name << " " << before[index];
          }
          ASSERT_EQ(logits[static_cast<std::size_t>(r * stride + tokens)],
                    before[static_cast<std::size_t>(r * stride + tokens)])
              << "past the row's end";
          true_max[row] = new_max;
          ASSERT_NEAR(sum[row], true_sum[row], (tokens * (tile + 1) + 8) * kEps * true_sum[row]);
          const double factor =
              old_max[row] == kHidden ? 0 : std::exp(double{old_max[row] - max[row]});
          ASSERT_NEAR(rescale[row], factor, 4 * kEps * factor + 2e-28);
        }
      }
    }
  }
}

TEST(SoftmaxTile, NothingAttendedIsTheEmptyState) {
  for (const KernelSet* set : runnable_sets()) {
    for (const int tokens : {1, 7, 16, 40, 64}) {
      std::vector<float> logits(static_cast<std::size_t>(tokens), kHidden);
      float max = kHidden, sum = 0, rescale = 9;
      set->softmax_tile({logits.data(), &max, &sum, &rescale, 1, tokens, tokens});
      EXPECT_EQ(max, kHidden) << set->name;
      EXPECT_EQ(sum, 0);
      EXPECT_EQ(rescale, 1);
      for (const float weight : logits) EXPECT_EQ(weight, 0);

      // A hidden tile after an attended one changes nothing.
      std::fill(logits.begin(), logits.end(), kHidden);
      max = 2.5f;
      sum = 1.25f;
      set->softmax_tile({logits.data(), &max, &sum, &rescale, 1, tokens, tokens});
      EXPECT_EQ(max, 2.5f);
      EXPECT_EQ(sum, 1.25f);
      EXPECT_EQ(rescale, 1);
      for (const float weight : logits) EXPECT_EQ(weight, 0);
    }
  }
}

TEST(SoftmaxTile, ExpIsGoodToTwoUlp) {
  for (const KernelSet* set : runnable_sets()) {
    double worst = 0;
    for (int first = 0; first < 64 * 4096; first += 64) {
      std::vector<float> x(65);
      for (int i = 0; i < 64; ++i)
        x[static_cast<std::size_t>(i)] = -static_cast<float>(first + i) / 4096;
      x[64] = 0;  // the largest, so that weights are e^x
      std::vector<float> weights = x;
      float max = kHidden, sum = 0, rescale = 0;
      set->softmax_tile({weights.data(), &max, &sum, &rescale, 1, 65, 65});
      for (std::size_t i = 0; i < 64; ++i) {
        const double truth = std::exp(double{x[i]});
        const double ulp = std::ldexp(1.0, std::ilogb(truth) - 23);
        worst = std::max(worst, std::abs(weights[i] - truth) / ulp);
      }
    }
    std::cout << set->name << ": exp within " << worst << " ulp\n";
    EXPECT_LE(worst, 2) << set->name;
  }
}

}  // namespace
}  // namespace oscar::kernels
