#include "eval/step_plan.h"

#include <algorithm>

namespace oscar::eval {
namespace {

class Planner {
 public:
  Planner(std::int64_t max_step, std::int64_t max_outputs)
      : max_step_(max_step), max_outputs_(max_outputs) {}

  // Decodes up to `end`, of which the last `num_scored` positions are scored.
  void go_to(std::int64_t end, std::int64_t num_scored) {
    while (at_ < end - num_scored) add(std::min(max_step_, end - num_scored - at_), 0);
    while (at_ < end) {
      const std::int64_t count = std::min(max_outputs_, end - at_);
      add(count, count);
    }
  }

  std::vector<EvalStep> take() { return std::move(steps_); }

 private:
  void add(std::int64_t count, std::int64_t num_outputs) {
    steps_.push_back({at_, count, num_outputs});
    at_ += count;
  }

  std::int64_t max_step_, max_outputs_, at_ = 0;
  std::vector<EvalStep> steps_;
};

}  // namespace

PositionRange range_of(std::int64_t position) {
  PositionRange range = {0, kFirstRange};
  while (position >= range.to) range = {range.to, 2 * range.to};
  return range;
}

std::vector<EvalStep> plan_steps(std::int64_t context_tokens, std::int64_t max_step,
                                 std::int64_t max_outputs, bool by_position) {
  const std::int64_t half = context_tokens / 2;
  Planner planner(max_step, max_outputs);
  for (PositionRange range = range_of(0); by_position && range.from < half;
       range = range_of(range.to)) {
    const std::int64_t end = std::min(range.to, half);
    planner.go_to(end, std::min(kScoredOfRange, end - range.from));
  }
  planner.go_to(half, 0);
  planner.go_to(context_tokens, context_tokens - half);
  return planner.take();
}

std::vector<std::int64_t> scored_positions(const std::vector<EvalStep>& steps,
                                           std::int64_t context_tokens) {
  std::vector<std::int64_t> positions;
  for (const EvalStep& step : steps) {
    const std::int64_t end = std::min(step.start + step.count, context_tokens - 1);
    for (std::int64_t p = step.start + step.count - step.num_outputs; p < end; ++p) {
      positions.push_back(p);
    }
  }
  return positions;
}

}  // namespace oscar::eval
