#include "eval/layer_errors.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "base/aligned_buffer.h"
#include "base/error.h"
#include "base/parallel.h"
#include "cache/layer_codec.h"
#include "kernels/kernels.h"
#include "reference/attention.h"

namespace oscar::eval {
namespace {

using calibrate::LayerStatistics;

struct Plane {
  AlignedBuffer<std::uint8_t> bytes;
  PlaneView view;

  Plane(const PlaneLayout& layout, int num_kv_heads, std::int64_t num_tokens) {
    const std::int64_t num_pages = (num_tokens + kPageSize - 1) / kPageSize;
    bytes = AlignedBuffer<std::uint8_t>(num_pages * num_kv_heads * layout.plane_bytes());
    view = {bytes.data(), num_kv_heads * layout.plane_bytes(), layout.plane_bytes(), layout};
  }
};

// One side's rows, each coded by itself.
std::vector<float> coded_alone(const cache::SideCoder& side, const std::vector<float>& rows,
                               const std::vector<std::int32_t>& positions, int index) {
  if (side.coder->group_tokens() > 1) {
    throw Error(ErrorCode::kUnsupported,
                "layer " + std::to_string(index) + ": the method codes groups of " +
                    std::to_string(side.coder->group_tokens()) +
                    " consecutive tokens, and the sample holds single ones; eval kl can judge it");
  }
  const std::int64_t width = side.coder->row_values();
  std::vector<float> result(rows.size()), rotated(static_cast<std::size_t>(width));
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(side.coder->group_bytes()));
  for (std::size_t token = 0; token < positions.size(); ++token) {
    const std::size_t at = token * static_cast<std::size_t>(width);
    side.rotate(&rows[at], 1, rotated.data());
    side.coder->encode(rotated.data(), &positions[token], 1, bytes.data());
    side.coder->decode(bytes.data(), &positions[token], 0, 1, rotated.data());
    side.rotate_back(rotated.data(), &result[at]);
  }
  return result;
}

CachedRows round_trip(const cache::LayerCodec& codec, const LayerStatistics& layer, int index) {
  const calibrate::LayerSample& sample = layer.sample;
  const auto num_tokens = static_cast<std::int64_t>(sample.key_positions.size());
  const int heads = layer.shape.num_kv_heads;
  const int k_dim = layer.shape.head_dim_k, v_dim = layer.shape.head_dim_v;
  if (!codec.is_packed()) {
    const auto finite = [](float x) { return std::isfinite(x); };
    if (!std::all_of(sample.keys.begin(), sample.keys.end(), finite) ||
        !std::all_of(sample.values.begin(), sample.values.end(), finite)) {
      throw Error(ErrorCode::kCorrupt, "layer " + std::to_string(index) +
                                           ": the model's keys or values hold NaN or Inf");
    }
    CachedRows rows;
    rows.keys = coded_alone(codec.key_side(), sample.keys, sample.key_positions, index);
    rows.values = coded_alone(codec.value_side(), sample.values, sample.key_positions, index);
    return rows;
  }
  Plane k(codec.k_layout(), heads, num_tokens), v(codec.v_layout(), heads, num_tokens);
  std::vector<std::int64_t> slots(static_cast<std::size_t>(num_tokens));
  std::iota(slots.begin(), slots.end(), 0);
  const bool finite =
      codec.encode_keys({sample.keys.data(), num_tokens, std::int64_t{heads} * k_dim, k_dim},
                        sample.key_positions.data(), slots.data(), k.view, 1) &&
      codec.encode_values({sample.values.data(), num_tokens, std::int64_t{heads} * v_dim, v_dim},
                          slots.data(), v.view, 1);
  if (!finite) {
    throw Error(ErrorCode::kCorrupt,
                "layer " + std::to_string(index) + ": the model's keys or values hold NaN or Inf");
  }
  CachedRows rows;
  rows.keys.resize(sample.keys.size());
  rows.values.resize(sample.values.size());
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    codec.decode_key(token, sample.key_positions[static_cast<std::size_t>(token)], k.view,
                     &rows.keys[static_cast<std::size_t>(token * heads * k_dim)]);
    codec.decode_value(token, v.view,
                       &rows.values[static_cast<std::size_t>(token * heads * v_dim)]);
  }
  return rows;
}

// One head's rows in fp64: [num_tokens][head_dim].
std::vector<std::vector<double>> rows_of(const std::vector<float>& rows, int num_heads, int head,
                                         int head_dim) {
  std::vector<std::vector<double>> result;
  const std::size_t stride = static_cast<std::size_t>(num_heads) * head_dim;
  for (std::size_t begin = 0; begin < rows.size(); begin += stride) {
    const float* row = rows.data() + begin + static_cast<std::size_t>(head) * head_dim;
    result.emplace_back(row, row + head_dim);
  }
  return result;
}

using Rows = std::vector<std::vector<double>>;

double squared_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

struct RowErrors {
  double mse = 0, relative = 0;
};

RowErrors row_errors(const Rows& exact, const Rows& cached) {
  std::vector<double> mean(exact.front().size(), 0);
  for (const auto& row : exact) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      mean[i] += row[i] / static_cast<double>(exact.size());
    }
  }
  double error = 0, energy = 0;
  for (std::size_t token = 0; token < exact.size(); ++token) {
    error += squared_distance(exact[token], cached[token]);
    energy += squared_distance(exact[token], mean);
  }
  const auto count = static_cast<double>(exact.size() * mean.size());
  return {error / count, energy > 0 ? error / energy : 0};
}

// Attention of one query: logits of the visible tokens, weights, output.
struct Attended {
  std::vector<double> logits, weights, output;
};

// rows[t] of `exact` where the query sees token t exactly, of `cached` elsewhere.
struct Mixed {
  const Rows& exact;
  const Rows& cached;
  const std::vector<std::uint8_t>& is_exact;
  const std::vector<double>& operator[](std::size_t token) const {
    return is_exact[token] ? exact[token] : cached[token];
  }
};

Attended attend(const std::vector<double>& query, double scale, const Mixed& keys,
                const Mixed& values, const std::vector<std::size_t>& visible) {
  Attended result;
  for (const std::size_t token : visible) {
    result.logits.push_back(scale * reference::dot(query, keys[token]));
  }
  result.weights = reference::softmax(result.logits);
  result.output.assign(values.exact.front().size(), 0);
  for (std::size_t i = 0; i < visible.size(); ++i) {
    const std::vector<double>& value = values[visible[i]];
    for (std::size_t c = 0; c < value.size(); ++c) {
      result.output[c] += result.weights[i] * value[c];
    }
  }
  return result;
}

double weights_kl(const std::vector<double>& exact, const std::vector<double>& cached) {
  double kl = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if (exact[i] > 0) kl += exact[i] * std::log(exact[i] / std::max(cached[i], 1e-300));
  }
  return std::max(kl, 0.0);
}

}  // namespace

HeadErrors head_errors(const LayerStatistics& layer, const CachedRows& cached, int kv_head,
                       int sink_tokens, int recent_tokens) {
  const calibrate::LayerShape& shape = layer.shape;
  const calibrate::LayerSample& sample = layer.sample;
  const Rows keys = rows_of(sample.keys, shape.num_kv_heads, kv_head, shape.head_dim_k);
  const Rows values = rows_of(sample.values, shape.num_kv_heads, kv_head, shape.head_dim_v);
  const Rows cached_keys = rows_of(cached.keys, shape.num_kv_heads, kv_head, shape.head_dim_k);
  const Rows cached_values = rows_of(cached.values, shape.num_kv_heads, kv_head, shape.head_dim_v);
  HeadErrors errors;
  errors.kv_head = kv_head;
  const RowErrors k = row_errors(keys, cached_keys), v = row_errors(values, cached_values);
  errors.k_mse = k.mse;
  errors.v_mse = v.mse;
  errors.k_relative = k.relative;
  errors.v_relative = v.relative;

  const int group = shape.num_q_heads / shape.num_kv_heads;
  const auto scale = static_cast<double>(layer.attention_scale);
  double logit_error = 0, num_logits = 0, kl = 0, energy = 0, num_rows = 0;
  double both = 0, keys_only = 0, values_only = 0;
  const std::vector<std::uint8_t> all_exact(keys.size(), 1);
  for (int q = 0; q < group; ++q) {
    const Rows queries =
        rows_of(sample.queries, shape.num_q_heads, kv_head * group + q, shape.head_dim_k);
    for (std::size_t row = 0; row < queries.size(); ++row) {
      const std::int32_t position = sample.query_positions[row];
      std::vector<std::size_t> visible;
      std::vector<std::uint8_t> exact(keys.size(), 0);
      for (std::size_t token = 0; token < keys.size(); ++token) {
        const std::int32_t key = sample.key_positions[token];
        if (key > position) continue;
        visible.push_back(token);
        exact[token] = key < sink_tokens || position - key < recent_tokens;
      }
      if (visible.empty()) continue;
      const Mixed k_exact{keys, cached_keys, all_exact}, k_cached{keys, cached_keys, exact};
      const Mixed v_exact{values, cached_values, all_exact}, v_cached{values, cached_values, exact};
      const Attended truth = attend(queries[row], scale, k_exact, v_exact, visible);
      const Attended with_keys = attend(queries[row], scale, k_cached, v_exact, visible);
      const Attended with_values = attend(queries[row], scale, k_exact, v_cached, visible);
      const Attended with_both = attend(queries[row], scale, k_cached, v_cached, visible);
      logit_error += squared_distance(truth.logits, with_both.logits);
      num_logits += static_cast<double>(visible.size());
      kl += weights_kl(truth.weights, with_both.weights);
      energy += reference::dot(truth.output, truth.output);
      both += squared_distance(truth.output, with_both.output);
      keys_only += squared_distance(truth.output, with_keys.output);
      values_only += squared_distance(truth.output, with_values.output);
      num_rows += 1;
    }
  }
  if (num_rows == 0 || energy == 0) return errors;
  errors.logit_mse = logit_error / num_logits;
  errors.weights_kl = kl / num_rows;
  errors.output_relative = both / energy;
  errors.output_keys = keys_only / energy;
  errors.output_values = values_only / energy;
  return errors;
}

std::vector<HeadErrors> layer_errors(const calibrate::Statistics& rows,
                                     const ModelFingerprint& model, const KvChoice& kv,
                                     int num_threads) {
  const Artefact artefact = artefact_for(rows, model, kv);
  std::vector<std::pair<int, const LayerStatistics*>> layers;
  std::vector<std::unique_ptr<cache::LayerCodec>> codecs;
  std::vector<std::size_t> first_head = {0};
  for (const auto& [index, layer] : rows.layers) {
    const ArtefactLayer& fitted = layer_of(artefact, index, kv);
    codecs.push_back(std::make_unique<cache::LayerCodec>(artefact, fitted,
                                                         rope_table(artefact, fitted, layer.sample),
                                                         kernels::selected_kernel_set()));
    layers.emplace_back(index, &layer);
    first_head.push_back(first_head.back() + static_cast<std::size_t>(layer.shape.num_kv_heads));
  }
  std::vector<CachedRows> cached;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    cached.push_back(round_trip(*codecs[i], *layers[i].second, layers[i].first));
  }
  std::vector<HeadErrors> errors(first_head.back());
  parallel_for(num_threads, std::ssize(errors), [&](std::int64_t task, int) {
    const auto head = static_cast<std::size_t>(task);
    const auto next = std::upper_bound(first_head.begin(), first_head.end(), head);
    const auto i = static_cast<std::size_t>(next - first_head.begin()) - 1;
    errors[head] = head_errors(*layers[i].second, cached[i], static_cast<int>(head - first_head[i]),
                               kv.spec.sink_tokens, kv.spec.recent_tokens);
    errors[head].layer = layers[i].first;
  });
  return errors;
}

}  // namespace oscar::eval
