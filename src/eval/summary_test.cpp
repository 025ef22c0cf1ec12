#include <gtest/gtest.h>

#include <cmath>

#include "eval/evaluate.h"

namespace oscar::eval {
namespace {

TEST(Summary, TheLastHalfCountsAndRangesStandApart) {
  EvalOptions options;
  options.context_tokens = 256;
  options.num_windows = 2;
  options.by_position = true;
  const std::vector<EvalStep> steps = plan_steps(256, 512, 512, true);
  const std::vector<std::int64_t> positions = scored_positions(steps, 256);
  WindowScores window;
  for (const std::int64_t position : positions) {
    const bool last_half = position >= 128;
    window.kl.push_back(last_half ? 0.5 : position < 64 ? 3.0 : 2.0);
    window.log_prob.push_back(last_half ? -2.0 : -9.0);
    window.same_top.push_back(last_half && position % 2 == 0);
  }
  window.decode_seconds = 1.25;
  const EvalRow row = summarize_lane({&window, &window}, steps, options);
  EXPECT_EQ(row.num_scored, 2 * 127);
  EXPECT_DOUBLE_EQ(row.perplexity, std::exp(2.0));
  EXPECT_DOUBLE_EQ(row.kl->mean, 0.5);
  EXPECT_DOUBLE_EQ(row.kl_interval.low, 0.5);
  EXPECT_NEAR(row.top1, 64.0 / 127.0, 1e-12);  // 128, 130, … 254
  EXPECT_LE(row.top1_interval.low, row.top1);
  EXPECT_GE(row.top1_interval.high, row.top1);
  EXPECT_DOUBLE_EQ(row.decode_seconds, 2.5);
  ASSERT_EQ(row.by_position.size(), 3u);
  EXPECT_EQ(row.by_position[0].range.to, 64);
  EXPECT_EQ(row.by_position[0].num_scored, 2 * 64);
  EXPECT_DOUBLE_EQ(row.by_position[0].kl_mean, 3.0);
  EXPECT_DOUBLE_EQ(row.by_position[1].kl_mean, 2.0);
  EXPECT_EQ(row.by_position[2].num_scored, 2 * 127);
  EXPECT_DOUBLE_EQ(row.by_position[2].kl_mean, 0.5);
}

}  // namespace
}  // namespace oscar::eval
