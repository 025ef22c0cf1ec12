#include "eval/step_plan.h"

#include <gtest/gtest.h>

#include <map>

namespace oscar::eval {
namespace {

TEST(StepPlan, RangesDouble) {
  EXPECT_EQ(range_of(0).from, 0);
  EXPECT_EQ(range_of(63).to, 64);
  EXPECT_EQ(range_of(64).from, 64);
  EXPECT_EQ(range_of(64).to, 128);
  EXPECT_EQ(range_of(4095).from, 2048);
  EXPECT_EQ(range_of(4096).from, 4096);
}

TEST(StepPlan, EveryTokenIsDecodedOnceAndTheLastHalfIsScored) {
  for (const std::int64_t context : {16, 17, 100, 128, 500, 512, 1024, 3000, 4096, 5001}) {
    for (const bool by_position : {false, true}) {
      SCOPED_TRACE(std::to_string(context) + (by_position ? ", by position" : ""));
      std::int64_t at = 0;
      const std::vector<EvalStep> steps = plan_steps(context, 512, 96, by_position);
      for (const EvalStep& step : steps) {
        EXPECT_EQ(step.start, at);
        EXPECT_GE(step.count, 1);
        EXPECT_LE(step.count, 512);
        EXPECT_LE(step.num_outputs, 96);
        at += step.count;
      }
      EXPECT_EQ(at, context);
      const std::vector<std::int64_t> scored = scored_positions(steps, context);
      std::map<std::int64_t, std::int64_t> per_range;
      std::int64_t last_half = 0;
      for (std::size_t i = 0; i < scored.size(); ++i) {
        if (i > 0) {
          EXPECT_LT(scored[i - 1], scored[i]);
        }
        if (scored[i] >= context / 2) ++last_half;
        ++per_range[range_of(scored[i]).from];
      }
      EXPECT_EQ(last_half, context - context / 2 - 1);
      EXPECT_EQ(scored.back(), context - 2);
      if (!by_position) {
        EXPECT_EQ(static_cast<std::int64_t>(scored.size()), last_half);
        continue;
      }
      // Every range has its last positions at least, up to half of the context.
      for (PositionRange range = range_of(0); range.to <= context / 2; range = range_of(range.to)) {
        EXPECT_GE(per_range[range.from], std::min(kScoredOfRange, range.to - range.from));
      }
    }
  }
}

}  // namespace
}  // namespace oscar::eval
