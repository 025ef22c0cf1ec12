#include "calibrate/calibrate_test_support.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace oscar::calibrate {
namespace {

// Row-by-row causal softmax attention in double precision.
void attend(SyntheticLayer* layer) {
  const auto [num_q_heads, num_kv_heads, k_dim, v_dim] = layer->shape;
  layer->outputs.assign(static_cast<std::size_t>(layer->num_tokens) * num_q_heads * v_dim, 0.0f);
  std::vector<double> weights(static_cast<std::size_t>(layer->num_tokens));
  std::vector<double> output(static_cast<std::size_t>(v_dim));
  for (int q_head = 0; q_head < num_q_heads; ++q_head) {
    const int kv_head = q_head / (num_q_heads / num_kv_heads);
    for (int t = 0; t < layer->num_tokens; ++t) {
      const float* query = &layer->queries[(std::size_t(t) * num_q_heads + q_head) * k_dim];
      double sum = 0;
      std::fill(output.begin(), output.end(), 0.0);
      for (int j = 0; j <= t; ++j) {
        const float* key = &layer->keys[(std::size_t(j) * num_kv_heads + kv_head) * k_dim];
        double logit = 0;
        for (int i = 0; i < k_dim; ++i) logit += double(query[i]) * double(key[i]);
        weights[j] = logit * double(layer->scale);
      }
      const double max = *std::max_element(weights.begin(), weights.begin() + t + 1);
      for (int j = 0; j <= t; ++j) {
        const double weight = std::exp(weights[j] - max);
        const float* value = &layer->values[(std::size_t(j) * num_kv_heads + kv_head) * v_dim];
        for (int i = 0; i < v_dim; ++i) output[i] += weight * double(value[i]);
        sum += weight;
      }
      float* out = &layer->outputs[(std::size_t(t) * num_q_heads + q_head) * v_dim];
      for (int i = 0; i < v_dim; ++i) out[i] = static_cast<float>(output[i] / sum);
    }
  }
}

}  // namespace

RopeSpec synthetic_rope(int head_dim) {
  RopeSpec spec;
  for (int f = 0; f < head_dim / 2; ++f) {
    spec.inv_freq.push_back(static_cast<float>(std::pow(10000.0, -2.0 * f / head_dim)));
  }
  return spec;
}

SyntheticLayer make_synthetic(const SyntheticOptions& options, const RopeTable* table) {
  const auto [num_q_heads, num_kv_heads, k_dim, v_dim] = options.shape;
  SyntheticLayer layer;
  layer.shape = options.shape;
  layer.num_tokens = options.num_tokens;
  layer.scale = 1.0f / std::sqrt(static_cast<float>(k_dim));
  std::mt19937_64 random(options.seed);
  std::normal_distribution<float> normal;
  const auto fill = [&](int num_heads, int dim, const std::vector<float>& deviation,
                        const std::vector<float>& offset, bool rotate) {
    std::vector<float> rows(static_cast<std::size_t>(options.num_tokens) * num_heads * dim);
    for (std::size_t row = 0; row < rows.size() / dim; ++row) {
      float* values = rows.data() + row * dim;
      for (int i = 0; i < dim; ++i) {
        values[i] = normal(random) * (deviation.empty() ? 1.0f : deviation[i]) +
                    (offset.empty() ? 0.0f : offset[i]);
      }
      if (rotate) table->rotate(values, static_cast<std::int32_t>(row / num_heads));
    }
    return rows;
  };
  const bool rotate = table != nullptr;
  layer.queries = fill(num_q_heads, k_dim, options.query_deviation, {}, rotate);
  layer.keys = fill(num_kv_heads, k_dim, options.key_deviation, options.key_offset, rotate);
  layer.values = fill(num_kv_heads, v_dim, {}, options.value_offset, false);
  for (int t = 0; t < options.num_tokens; ++t) layer.positions.push_back(t);
  attend(&layer);
  return layer;
}

void feed(const SyntheticLayer& layer, int index, int chunk, const RopeTable* table,
          Collector* collector) {
  const auto [num_q_heads, num_kv_heads, k_dim, v_dim] = layer.shape;
  const std::int64_t q_stride = std::int64_t{num_q_heads} * k_dim;
  const std::int64_t k_stride = std::int64_t{num_kv_heads} * k_dim;
  const std::int64_t v_stride = std::int64_t{num_kv_heads} * v_dim;
  const std::int64_t o_stride = std::int64_t{num_q_heads} * v_dim;
  for (int first = 0; first < layer.num_tokens; first += chunk) {
    const int count = std::min(chunk, layer.num_tokens - first);
    const std::int32_t* positions = layer.positions.data() + first;
    collector->on_keys(index, layer.shape, table == nullptr ? nullptr : &table->spec(), table,
                       layer.keys.data() + first * k_stride, k_stride, k_dim, positions, count);
    collector->on_values(index, layer.shape, layer.values.data() + first * v_stride, v_stride,
                         v_dim, count);
    collector->on_attention(
        index, layer.shape, layer.scale, layer.queries.data() + first * q_stride, q_stride, k_dim,
        layer.outputs.data() + first * o_stride, o_stride, v_dim, positions, count);
  }
}

}  // namespace oscar::calibrate
