// Which tokens are attended, counted exactly: all keys are 0 and V[t] = t, so that the output is
// the mean of the attended positions.
#include <gtest/gtest.h>

#include <vector>

#include "attention/sequence_attention.h"
#include "cache/cache.h"
#include "cache/test_artefact.h"

namespace oscar::attention::test {
namespace {

constexpr int kDim = 32;

// A constant group decodes to the BF16 value nearest to it, so positions up to 256 are exact and
// larger ones are off by 2⁻⁹ of themselves at most.
Artefact position_artefact() {
  return cache::test::make_artefact({.k_quant = {2, kDim},
                                     .v_quant = {2, kDim},
                                     .transform = cache::test::Transform::kIdentity,
                                     .mean = cache::test::Mean::kNone,
                                     .num_kv_heads = 1,
                                     .head_dim_k = kDim,
                                     .head_dim_v = kDim},
                                    1);
}

// The mean position that each of the last num_queries tokens of a sequence of num_tokens attends;
// the last append brings them.
std::vector<float> attended_means(std::int64_t num_tokens, std::int64_t num_queries,
                                  std::int32_t sink_tokens, std::int32_t recent_tokens,
                                  std::int32_t sliding_window) {
  cache::Cache cache(position_artefact(), {.num_pages = 20,
                                           .sink_tokens = sink_tokens,
                                           .recent_tokens = recent_tokens,
                                           .max_append_tokens = 64});
  const cache::SequenceId sequence = cache.create_sequence();
  while (cache.num_tokens(sequence) < num_tokens) {
    const std::int64_t first = cache.num_tokens(sequence), before_last = num_tokens - num_queries;
    const std::int64_t count =
        std::min<std::int64_t>(64, (first < before_last ? before_last : num_tokens) - first);
    EXPECT_TRUE(cache.begin_append(sequence, count));
    std::vector<float> keys(count * kDim), values(count * kDim);
    for (std::int64_t i = 0; i < count * kDim; ++i)
      values[i] = static_cast<float>(first + i / kDim);
    EXPECT_TRUE(cache.append_layer(sequence, 0, {keys.data(), count, kDim, kDim},
                                   {values.data(), count, kDim, kDim}));
  }
  std::vector<float> q(num_queries * kDim, 1.0f), out(num_queries * kDim), means;
  SequenceQueries queries{1, num_queries, q.data(), out.data()};
  queries.sliding_window = sliding_window;
  SequenceAttention(1).attend(cache.view(sequence, 0), queries);
  for (std::int64_t i = 0; i < num_queries; ++i) {
    means.push_back(out[i * kDim]);
    for (int d = 1; d < kDim; ++d) EXPECT_EQ(out[i * kDim + d], means.back());
  }
  return means;
}

// Weights are equal, so the mean is Σt/n: exact but for the rounding of n weights and sums.
constexpr float kTolerance = 1e-3f;

TEST(Windows, SlidingWindowHoldsTheTokenItself) {
  for (const auto& [num_tokens, window, mean] : {std::tuple{10, 4, 7.5f},
                                                 {127, 128, 63.0f},
                                                 {128, 128, 63.5f},
                                                 {129, 128, 64.5f},
                                                 {200, 128, 135.5f}}) {
    EXPECT_NEAR(attended_means(num_tokens, 1, 0, 0, window)[0], mean, kTolerance)
        << num_tokens << " tokens, window " << window;
    EXPECT_NEAR(attended_means(num_tokens, 1, 64, 256, window)[0], mean, kTolerance)
        << num_tokens << " tokens, window " << window;
  }
}

TEST(Windows, EveryTokenCountsOnceWhereverItIsKept) {
  for (const auto& [sinks, recent] : {std::pair{16, 32}, {64, 128}, {0, 32}, {16, 0}}) {
    for (const int num_tokens :
         {1, sinks, sinks + 1, sinks + recent - 1, sinks + recent, sinks + recent + 1, 256}) {
      if (num_tokens == 0) continue;
      EXPECT_NEAR(attended_means(num_tokens, 1, sinks, recent, 0)[0],
                  static_cast<float>(num_tokens - 1) / 2, kTolerance)
          << num_tokens << " tokens, windows " << sinks << "/" << recent;
    }
  }
}

TEST(Windows, EveryTokenCountsOnceAtTheDefaultWindows) {
  for (const int num_tokens : {64, 65, 319, 320, 321, 1000}) {
    const float mean = static_cast<float>(num_tokens - 1) / 2;
    EXPECT_NEAR(attended_means(num_tokens, 1, 64, 256, 0)[0], mean, kTolerance + mean / 512)
        << num_tokens << " tokens";
  }
}

TEST(Windows, EveryQueryOfAChunkSeesItsOwnPast) {
  for (const int num_queries : {1, 7, 64}) {
    const std::vector<float> means = attended_means(250, num_queries, 16, 32, 0);
    for (int i = 0; i < num_queries; ++i)
      EXPECT_NEAR(means[i], static_cast<float>(250 - num_queries + i) / 2, kTolerance);
  }
}

}  // namespace
}  // namespace oscar::attention::test
