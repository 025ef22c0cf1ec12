#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/attention_test_support.h"
#include "attention/page_mask.h"

namespace oscar::attention::test {

// The cell as the query attends it: by its exact copy or by what its codes stand for.
reference::Token Layer::token_of(std::int64_t cell, int head, std::int64_t query) const {
  const Scenario& s = scenario_;
  const std::int64_t position = cell_positions_[cell];
  const bool copied =
      copy_slots_[cell] >= 0 &&
      (position < s.sink_tokens ||
       (s.recent_tokens > 0 && query_positions_[query] - position < s.recent_tokens));
  const auto row = [&](const std::vector<bf16_t>& copies, const std::vector<float>& decoded,
                       int dim) {
    std::vector<double> values(dim);
    for (int d = 0; d < dim; ++d) {
      const std::int64_t width = std::int64_t{s.num_kv_heads} * dim,
                         column = std::int64_t{head} * dim + d;
      values[d] = copied ? bf16_to_float(copies[copy_slots_[cell] * width + column])
                         : decoded[cell * width + column];
    }
    return values;
  };
  reference::Token token{row(k_copies_, decoded_keys_, s.head_dim_k),
                         row(v_copies_, decoded_values_, s.head_dim_v), position};
  if (s.mask) token.mask = float_from_f16(mask_[query * num_kv_ + cell]);
  return token;
}

Result Layer::reference() const {
  const Scenario& s = scenario_;
  Result result;
  for (std::int64_t query = 0; query < s.num_queries; ++query) {
    std::vector<reference::Token> tokens;
    for (int head = 0; head < num_q_heads_; ++head) {
      if (head % s.group == 0) {
        tokens.clear();
        for (std::int64_t cell = 0; cell < num_kv_; ++cell) {
          if (cell_positions_[cell] >= 0) tokens.push_back(token_of(cell, head / s.group, query));
        }
      }
      reference::AttentionOptions options;
      options.scale = params_.scale;
      options.soft_cap = s.soft_cap;
      options.causal = s.causal;
      options.window = s.sliding_window;
      if (s.slopes) options.mask_slope = slopes_[head];
      if (s.sinks) options.sink = sinks_[head];
      const float* const q = queries_.data() + (query * num_q_heads_ + head) * s.head_dim_k;
      const std::vector<double> row(q, q + s.head_dim_k);
      const auto one =
          reference::attend(row, query_positions_[query], tokens, s.head_dim_v, options);
      for (const double value : one.out) result.out.push_back(static_cast<float>(value));
      result.lse.push_back(static_cast<float>(one.lse));
    }
  }
  return result;
}

double Layer::max_logit_magnitude() const {
  const auto largest_norm = [](const std::vector<float>& rows, int dim) {
    double largest = 0;
    for (std::size_t i = 0; i + dim <= rows.size(); i += dim) {
      double sum = 0;
      for (int d = 0; d < dim; ++d) sum += double{rows[i + d]} * rows[i + d];
      largest = std::max(largest, sum);
    }
    return std::sqrt(largest);
  };
  return params_.scale * largest_norm(queries_, scenario_.head_dim_k) *
         std::max(largest_norm(keys_, scenario_.head_dim_k),
                  largest_norm(decoded_keys_, scenario_.head_dim_k));
}

double Layer::max_value() const {
  double largest = 0;
  for (const float value : values_) largest = std::max(largest, std::abs(double{value}));
  for (const float value : decoded_values_) largest = std::max(largest, std::abs(double{value}));
  return largest;
}

double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return norm == 0 ? std::sqrt(error) : std::sqrt(error / norm);
}

}  // namespace oscar::attention::test
