// Which positions of a context are scored, and in what steps it is decoded.
#pragma once

#include <cstdint>
#include <vector>

namespace oscar::eval {

// Decodes tokens [start, start + count); the last num_outputs of them are scored. The context's
// last token has no successor to be judged by: of the last step one output fewer counts.
struct EvalStep {
  std::int64_t start = 0, count = 0, num_outputs = 0;
};

// Ranges of positions, each twice as far from the start as the one before: [0, 64), [64, 128),
// [128, 256), …
inline constexpr std::int64_t kFirstRange = 64;
// Scored positions of a range in the first half: its last ones.
inline constexpr std::int64_t kScoredOfRange = 128;

struct PositionRange {
  std::int64_t from = 0, to = 0;  // `to` excluded
};

// The range that a position lies in.
PositionRange range_of(std::int64_t position);

// The last half of the context is scored whole; with `by_position` a part of every range before it
// is too. Steps are at most `max_step` long where nothing, `max_outputs` where something is scored.
std::vector<EvalStep> plan_steps(std::int64_t context_tokens, std::int64_t max_step,
                                 std::int64_t max_outputs, bool by_position);

// Positions whose predictions are scored, ascending: those that plan_steps' outputs belong to.
std::vector<std::int64_t> scored_positions(const std::vector<EvalStep>& steps,
                                           std::int64_t context_tokens);

}  // namespace oscar::eval
