// From the scores of positions to a row of the table.
#include <cmath>
#include <map>

#include "eval/evaluate.h"

namespace oscar::eval {
namespace {

struct Columns {
  std::vector<double> kl, log_prob, same_top;               // of the last half
  std::map<std::int64_t, std::vector<double>> kl_by_range;  // by the range's first position
};

Columns collect(const std::vector<const WindowScores*>& windows,
                const std::vector<std::int64_t>& positions, std::int64_t half) {
  Columns columns;
  for (const WindowScores* window : windows) {
    for (std::size_t i = 0; i < positions.size(); ++i) {
      columns.kl_by_range[range_of(positions[i]).from].push_back(window->kl[i]);
      if (positions[i] < half) continue;
      columns.kl.push_back(window->kl[i]);
      columns.log_prob.push_back(window->log_prob[i]);
      columns.same_top.push_back(window->same_top[i]);
    }
  }
  return columns;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

EvalRow summarize_lane(const std::vector<const WindowScores*>& windows,
                       const std::vector<EvalStep>& steps, const EvalOptions& options) {
  const std::vector<std::int64_t> positions = scored_positions(steps, options.context_tokens);
  const Columns columns = collect(windows, positions, options.context_tokens / 2);
  BootstrapOptions bootstrap;
  bootstrap.seed = options.seed;
  bootstrap.block_length = kTokenBlock;
  EvalRow row;
  row.context_tokens = options.context_tokens;
  row.num_scored = static_cast<std::int64_t>(columns.log_prob.size());
  row.perplexity = std::exp(-mean(columns.log_prob));
  const Interval log_prob = bootstrap_mean(columns.log_prob, bootstrap);
  row.perplexity_interval = {std::exp(-log_prob.high), std::exp(-log_prob.low)};
  for (const WindowScores* window : windows) row.decode_seconds += window->decode_seconds;
  if (!options.with_kl) return row;
  row.kl = summarize_kl(columns.kl);
  row.kl_interval = bootstrap_mean(columns.kl, bootstrap);
  row.top1 = mean(columns.same_top);
  row.top1_interval = bootstrap_mean(columns.same_top, bootstrap);
  if (!options.by_position) return row;
  for (const auto& [from, values] : columns.kl_by_range) {
    PositionRow range;
    range.range = range_of(from);
    range.num_scored = static_cast<std::int64_t>(values.size());
    range.kl_mean = mean(values);
    range.kl_interval = bootstrap_mean(values, bootstrap);
    row.by_position.push_back(range);
  }
  return row;
}

}  // namespace oscar::eval
