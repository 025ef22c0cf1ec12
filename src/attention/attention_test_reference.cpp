#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "attention/attention_test_support.h"
#include "attention/page_mask.h"

namespace oscar::attention::test {

std::vector<double> Layer::key_row(std::int64_t cell, int head, bool copy) const {
  std::vector<double> row(scenario_.head_dim_k);
  for (int d = 0; d < scenario_.head_dim_k; ++d) {
    const std::int64_t column = std::int64_t{head} * scenario_.head_dim_k + d;
    const std::int64_t width = std::int64_t{scenario_.num_kv_heads} * scenario_.head_dim_k;
    row[d] = copy ? bf16_to_float(k_copies_[copy_slots_[cell] * width + column])
                  : decoded_keys_[cell * width + column];
  }
  return row;
}

std::vector<double> Layer::value_row(std::int64_t cell, int head, bool copy) const {
  std::vector<double> row(scenario_.head_dim_v);
  for (int d = 0; d < scenario_.head_dim_v; ++d) {
    const std::int64_t column = std::int64_t{head} * scenario_.head_dim_v + d;
    const std::int64_t width = std::int64_t{scenario_.num_kv_heads} * scenario_.head_dim_v;
    row[d] = copy ? bf16_to_float(v_copies_[copy_slots_[cell] * width + column])
                  : decoded_values_[cell * width + column];
  }
  return row;
}

Result Layer::reference() const {
  const Scenario& s = scenario_;
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  Result result;
  for (std::int64_t query = 0; query < s.num_queries; ++query) {
    for (int head = 0; head < num_q_heads_; ++head) {
      const float* const q = queries_.data() + (query * num_q_heads_ + head) * s.head_dim_k;
      std::vector<double> logits(num_kv_, kNothing);
      std::vector<char> copied(num_kv_, 0);
      double max = s.sinks ? sinks_[head] : kNothing;
      for (std::int64_t cell = 0; cell < num_kv_; ++cell) {
        const std::int64_t position = cell_positions_[cell],
                           distance = query_positions_[query] - position;
        if (position < 0 || (s.causal && distance < 0) ||
            (s.sliding_window > 0 && distance >= s.sliding_window))
          continue;
        copied[cell] =
            copy_slots_[cell] >= 0 && (position < s.sink_tokens || distance < s.recent_tokens);
        const std::vector<double> k = key_row(cell, head / s.group, copied[cell]);
        double logit = params_.scale * std::inner_product(k.begin(), k.end(), q, 0.0);
        if (s.soft_cap != 0) logit = s.soft_cap * std::tanh(logit / s.soft_cap);
        if (s.mask) {
          const std::uint16_t bits = mask_[query * num_kv_ + cell];
          if (bits == 0xfc00) continue;
          logit += double{s.slopes ? slopes_[head] : 1.0f} * float_from_f16(bits);
        }
        logits[cell] = logit;
        max = std::max(max, logit);
      }
      double sum = s.sinks ? std::exp(sinks_[head] - max) : 0.0;
      std::vector<double> out(s.head_dim_v, 0.0);
      for (std::int64_t cell = 0; cell < num_kv_; ++cell) {
        if (logits[cell] == kNothing) continue;
        const double weight = std::exp(logits[cell] - max);
        const std::vector<double> v = value_row(cell, head / s.group, copied[cell]);
        sum += weight;
        for (int d = 0; d < s.head_dim_v; ++d) out[d] += weight * v[d];
      }
      for (const double value : out)
        result.out.push_back(sum == 0 ? 0.0f : static_cast<float>(value / sum));
      result.lse.push_back(static_cast<float>(sum == 0 ? kNothing : max + std::log(sum)));
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
