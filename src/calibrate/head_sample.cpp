#include "calibrate/head_sample.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "format/kv_spec.h"

namespace oscar::calibrate {
namespace {

// With fewer coded pairs than this share of the visible ones the text says little about codes
// behind windows, and the windows are left out of the judgement.
constexpr double kMinCodedShare = 0.25;

// Query rows a KV head, all its query heads together: more say little more about the same keys.
constexpr std::int64_t kMaxQueryRows = 768;

void keep_evenly(std::int64_t count, std::vector<std::int64_t>* places) {
  const auto size = static_cast<std::int64_t>(places->size());
  if (size <= count) return;
  for (std::int64_t i = 0; i < count; ++i) (*places)[i] = (*places)[i * size / count];
  places->resize(static_cast<std::size_t>(count));
}

bool rows_finite(const std::vector<float>& rows, std::int64_t token, std::int64_t row_size) {
  const float* row = rows.data() + token * row_size;
  return std::all_of(row, row + row_size, [](float value) { return std::isfinite(value); });
}

[[noreturn]] void refuse(int layer, const std::string& what) {
  throw Error(ErrorCode::kCorrupt, "layer " + std::to_string(layer) + ": " + what);
}

void check_size(int layer, const char* what, std::size_t size, std::int64_t tokens,
                std::int64_t row_size) {
  if (static_cast<std::int64_t>(size) == tokens * row_size) return;
  refuse(layer, std::string("the sample of ") + what + " holds " + std::to_string(size) +
                    " numbers; its " + std::to_string(tokens) + " tokens need " +
                    std::to_string(tokens * row_size));
}

MatrixF gather(const std::vector<float>& rows, const std::vector<std::int64_t>& tokens,
               std::int64_t row_size, std::int64_t offset, int num_heads, int head_dim) {
  MatrixF gathered(static_cast<std::int64_t>(tokens.size()) * num_heads, head_dim);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const float* source = rows.data() + tokens[i] * row_size + offset;
    std::copy_n(source, std::int64_t{num_heads} * head_dim,
                gathered.data() + static_cast<std::int64_t>(i) * num_heads * head_dim);
  }
  return gathered;
}

}  // namespace

SampleGeometry sample_geometry(int layer, const LayerStatistics& stats) {
  const LayerShape& shape = stats.shape;
  const LayerSample& sample = stats.sample;
  const auto num_keys = static_cast<std::int64_t>(sample.key_positions.size());
  const auto num_queries = static_cast<std::int64_t>(sample.query_positions.size());
  const std::int64_t k_size = std::int64_t{shape.num_kv_heads} * shape.head_dim_k;
  const std::int64_t v_size = std::int64_t{shape.num_kv_heads} * shape.head_dim_v;
  const std::int64_t q_size = std::int64_t{shape.num_q_heads} * shape.head_dim_k;
  check_size(layer, "keys", sample.keys.size(), num_keys, k_size);
  check_size(layer, "values", sample.values.size(), num_keys, v_size);
  check_size(layer, "queries", sample.queries.size(), num_queries, q_size);

  SampleGeometry geometry;
  for (std::int64_t i = 0; i < num_keys; ++i) {
    if (rows_finite(sample.keys, i, k_size) && rows_finite(sample.values, i, v_size)) {
      geometry.keys.push_back(i);
    }
  }
  for (std::int64_t i = 0; i < num_queries; ++i) {
    if (rows_finite(sample.queries, i, q_size)) geometry.queries.push_back(i);
  }
  keep_evenly(std::max<std::int64_t>(1, kMaxQueryRows * shape.num_kv_heads / shape.num_q_heads),
              &geometry.queries);
  if (geometry.keys.empty() || geometry.queries.empty()) {
    refuse(layer, "no finite token is left in its sample; calibrate again, on another text");
  }

  const std::int64_t others = num_keys - sample.num_sinks;
  const float other_weight =
      others == 0 ? 1.0f
                  : std::max(1.0f, static_cast<float>(stats.num_tokens - sample.num_sinks) /
                                       static_cast<float>(others));
  const auto rows = static_cast<Eigen::Index>(geometry.queries.size());
  const auto columns = static_cast<Eigen::Index>(geometry.keys.size());
  geometry.key_weight.resize(columns);
  geometry.visible.setZero(rows, columns);
  geometry.coded.setZero(rows, columns);
  for (Eigen::Index k = 0; k < columns; ++k) {
    geometry.key_weight[k] = geometry.keys[k] < sample.num_sinks ? 1.0f : other_weight;
    const std::int32_t key_position = sample.key_positions[geometry.keys[k]];
    for (Eigen::Index q = 0; q < rows; ++q) {
      const std::int32_t distance = sample.query_positions[geometry.queries[q]] - key_position;
      if (distance < 0) continue;
      geometry.visible(q, k) = 1.0f;
      const bool exact = key_position < kDefaultSinkTokens || distance < kDefaultRecentTokens;
      geometry.coded(q, k) = exact ? 0.0f : 1.0f;
    }
  }
  const double num_visible = geometry.visible.cast<double>().sum();
  const double num_coded = geometry.coded.cast<double>().sum();
  geometry.windowed = num_coded > 0 && num_coded >= kMinCodedShare * num_visible;
  if (!geometry.windowed) geometry.coded = geometry.visible;
  return geometry;
}

HeadSample head_sample(const LayerStatistics& stats, const SampleGeometry& geometry, int kv_head) {
  const LayerShape& shape = stats.shape;
  const int group = shape.num_q_heads / shape.num_kv_heads;
  HeadSample head;
  head.keys = gather(stats.sample.keys, geometry.keys, shape.num_kv_heads * shape.head_dim_k,
                     kv_head * shape.head_dim_k, 1, shape.head_dim_k);
  head.values = gather(stats.sample.values, geometry.keys, shape.num_kv_heads * shape.head_dim_v,
                       kv_head * shape.head_dim_v, 1, shape.head_dim_v);
  head.queries =
      gather(stats.sample.queries, geometry.queries, shape.num_q_heads * shape.head_dim_k,
             kv_head * group * shape.head_dim_k, group, shape.head_dim_k) *
      stats.attention_scale;

  head.weights.noalias() = head.queries * head.keys.transpose();
  head.coded_weights.resize(head.weights.rows(), head.weights.cols());
  const VectorF log_weight = geometry.key_weight.array().log();
  for (Eigen::Index row = 0; row < head.weights.rows(); ++row) {
    const auto visible = geometry.visible.row(row / group).array();
    auto weights = head.weights.row(row).array();
    weights += log_weight.transpose().array();
    // Hidden keys must not set the maximum; their weight is zeroed after the exponential.
    const float lowest = weights.minCoeff();
    const float max = (visible > 0.5f).select(weights, lowest).maxCoeff();
    weights = (weights - max).min(0.0f).exp() * visible;
    const float sum = weights.sum();
    if (sum > 0) weights /= sum;
    head.coded_weights.row(row) = (weights * geometry.coded.row(row / group).array()).matrix();
  }
  head.coded_square_sum = head.coded_weights.colwise().squaredNorm().transpose();
  head.square_sum = head.weights.colwise().squaredNorm().transpose();
  return head;
}

std::int64_t first_coded_key(const LayerStatistics& stats, const SampleGeometry& geometry) {
  if (!geometry.windowed) return 0;
  const auto first =
      std::lower_bound(geometry.keys.begin(), geometry.keys.end(), stats.sample.num_sinks);
  return first == geometry.keys.end() ? 0 : first - geometry.keys.begin();
}

}  // namespace oscar::calibrate
