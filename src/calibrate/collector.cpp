#include "calibrate/collector.h"

#include <Eigen/Core>
#include <algorithm>
#include <bit>
#include <string>

#include "base/error.h"
#include "calibrate/sampler.h"
#include "format/kv_spec.h"

namespace oscar::calibrate {
namespace {

using MatrixF = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixD = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Rows multiplied in float before the product is added in double: bounds the rounding error to that
// of 256 float additions however long the text is.
constexpr std::int64_t kBlockRows = 256;
constexpr std::uint64_t kQueryStream = 0x51u;  // so that queries are other tokens than keys

bool all_finite(const float* row, int size) {
  constexpr std::uint32_t kExponent = 0x7f800000u;
  std::uint32_t found = 0;
  for (int i = 0; i < size; ++i) {
    found |= (std::bit_cast<std::uint32_t>(row[i]) & kExponent) == kExponent ? 1u : 0u;
  }
  return found == 0;
}

std::string layer_text(int layer) { return "layer " + std::to_string(layer); }

void merge_field(int layer, const char* what, int given, int* known) {
  if (given < 0) {
    throw Error(ErrorCode::kInvalidArgument, layer_text(layer) + ": " + what + " is " +
                                                 std::to_string(given) +
                                                 "; legal: 0 (not known) and above");
  }
  if (given == 0) return;
  if (*known != 0 && *known != given) {
    throw Error(ErrorCode::kMismatch, layer_text(layer) + ": " + what + " was " +
                                          std::to_string(*known) + " and is now " +
                                          std::to_string(given) + "; it must stay the same");
  }
  *known = given;
}

void require(int layer, const char* what, int value) {
  if (value > 0) return;
  throw Error(ErrorCode::kInvalidArgument,
              layer_text(layer) + ": " + what + " is not known; give it with the rows");
}

// sum += blockᵀ·block, block [num_rows][dim].
void add_outer_products(const std::vector<float>& block, std::int64_t num_rows, int dim,
                        std::vector<float>* product, std::vector<double>* sum) {
  const Eigen::Map<const MatrixF> rows(block.data(), num_rows, dim);
  product->resize(static_cast<std::size_t>(dim) * dim);
  Eigen::Map<MatrixF> outer(product->data(), dim, dim);
  outer.setZero();
  outer.selfadjointView<Eigen::Lower>().rankUpdate(rows.transpose());
  for (int i = 0; i < dim; ++i) {
    double* sum_row = sum->data() + static_cast<std::size_t>(i) * dim;
    for (int j = 0; j <= i; ++j) {
      const double value = static_cast<double>(outer(i, j));
      sum_row[j] += value;
      if (j < i) (*sum)[static_cast<std::size_t>(j) * dim + i] += value;
    }
  }
}

// Copies a token's rows of all heads to its place in a sample, which grows while it fills up.
void store(const float* rows, std::int64_t head_stride, int num_heads, int head_dim,
           std::int64_t slot, std::vector<float>* sample) {
  const std::size_t size = static_cast<std::size_t>(num_heads) * head_dim;
  const std::size_t begin = static_cast<std::size_t>(slot) * size;
  if (sample->size() < begin + size) sample->resize(begin + size);
  for (int head = 0; head < num_heads; ++head) {
    std::copy_n(rows + head * head_stride, head_dim,
                sample->data() + begin + static_cast<std::size_t>(head) * head_dim);
  }
}

void store(std::int32_t position, std::int64_t slot, std::vector<std::int32_t>* sample) {
  if (static_cast<std::int64_t>(sample->size()) <= slot) sample->resize(slot + 1);
  (*sample)[slot] = position;
}

// Sinks take at most a quarter of a sample: the rest has to say what the bulk of the text is like.
Sampler key_sampler(const CollectorOptions& options) {
  return Sampler(options.seed, options.sampled_keys,
                 std::min<std::int64_t>(kDefaultSinkTokens, options.sampled_keys / 4));
}

}  // namespace

Collector::Collector(CollectorOptions options) : options_(options) {
  if (options_.sampled_keys < 1 || options_.sampled_queries < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "a sample of " + std::to_string(options_.sampled_keys) + " keys and " +
                    std::to_string(options_.sampled_queries) +
                    " queries is too small; legal: 1 and above");
  }
}

LayerStatistics& Collector::layer_for(int layer, const LayerShape& shape) {
  LayerStatistics& stats = statistics_.layers[layer];
  merge_field(layer, "num_q_heads", shape.num_q_heads, &stats.shape.num_q_heads);
  merge_field(layer, "num_kv_heads", shape.num_kv_heads, &stats.shape.num_kv_heads);
  merge_field(layer, "head_dim_k", shape.head_dim_k, &stats.shape.head_dim_k);
  merge_field(layer, "head_dim_v", shape.head_dim_v, &stats.shape.head_dim_v);
  require(layer, "num_kv_heads", stats.shape.num_kv_heads);
  if (stats.heads.empty()) stats.heads.resize(stats.shape.num_kv_heads);
  return stats;
}

void Collector::add_covariance(const float* rows, std::int64_t token_stride, int head_dim,
                               std::int64_t num_tokens, std::vector<double>* sum) {
  sum->resize(static_cast<std::size_t>(head_dim) * head_dim);
  row_block_.resize(static_cast<std::size_t>(kBlockRows) * head_dim);
  std::int64_t num_rows = 0;
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    const float* row = rows + token * token_stride;
    if (!all_finite(row, head_dim)) continue;
    std::copy_n(row, head_dim, row_block_.data() + num_rows * head_dim);
    if (++num_rows < kBlockRows) continue;
    add_outer_products(row_block_, num_rows, head_dim, &product_, sum);
    num_rows = 0;
  }
  if (num_rows > 0) add_outer_products(row_block_, num_rows, head_dim, &product_, sum);
}

int Collector::rope_index(const RopeSpec* rope) {
  if (rope == nullptr || rope->inv_freq.empty()) return -1;
  const auto found = std::find(statistics_.ropes.begin(), statistics_.ropes.end(), *rope);
  const auto index = static_cast<int>(found - statistics_.ropes.begin());
  if (found == statistics_.ropes.end()) statistics_.ropes.push_back(*rope);
  return index;
}

void Collector::on_keys(int layer, const LayerShape& shape, const RopeSpec* rope,
                        const RopeTable* table, const float* keys, std::int64_t token_stride,
                        std::int64_t head_stride, const std::int32_t* positions,
                        std::int64_t num_tokens) {
  LayerStatistics& stats = layer_for(layer, shape);
  require(layer, "head_dim_k", stats.shape.head_dim_k);
  const int dim = stats.shape.head_dim_k;
  Progress& progress = progress_[layer];
  const int index = table == nullptr ? -1 : rope_index(rope);
  if (progress.keys > 0 && index != stats.rope) {
    throw Error(ErrorCode::kMismatch, layer_text(layer) + ": the RoPE changes after token " +
                                          std::to_string(progress.keys) +
                                          "; it must stay the same for a layer");
  }
  stats.rope = index;
  for (HeadStatistics& head : stats.heads) {
    head.key_mean_sum.resize(dim);
    head.key_square_sum.resize(dim);
  }
  const Sampler sampler = key_sampler(options_);
  std::vector<float> row(static_cast<std::size_t>(dim));
  for (std::int64_t token = 0; token < num_tokens; ++token, ++progress.keys) {
    const float* token_keys = keys + token * token_stride;
    for (int head = 0; head < stats.shape.num_kv_heads; ++head) {
      const float* key = token_keys + head * head_stride;
      if (!all_finite(key, dim)) {
        ++statistics_.num_non_finite;
        continue;
      }
      std::copy_n(key, dim, row.data());
      if (stats.rope >= 0) table->rotate_back(row.data(), positions[token]);
      HeadStatistics& sums = stats.heads[head];
      for (int i = 0; i < dim; ++i) {
        const double value = static_cast<double>(row[i]);
        sums.key_mean_sum[i] += value;
        sums.key_square_sum[i] += value * value;
      }
      ++sums.num_tokens;
    }
    if (const std::int64_t slot = sampler.slot(progress.keys); slot >= 0) {
      store(token_keys, head_stride, stats.shape.num_kv_heads, dim, slot, &stats.sample.keys);
      store(positions[token], slot, &stats.sample.key_positions);
    }
  }
  if (options_.raw_targets) {
    for (int head = 0; head < stats.shape.num_kv_heads; ++head) {
      add_covariance(keys + head * head_stride, token_stride, dim, num_tokens,
                     &stats.heads[head].key_covariance);
    }
  }
  stats.num_tokens = progress.keys;
  stats.sample.num_sinks = std::min(progress.keys, sampler.num_kept());
}

void Collector::on_values(int layer, const LayerShape& shape, const float* values,
                          std::int64_t token_stride, std::int64_t head_stride,
                          std::int64_t num_tokens) {
  LayerStatistics& stats = layer_for(layer, shape);
  require(layer, "head_dim_v", stats.shape.head_dim_v);
  const int dim = stats.shape.head_dim_v;
  Progress& progress = progress_[layer];
  for (HeadStatistics& head : stats.heads) head.value_mean_sum.resize(dim);
  const Sampler sampler = key_sampler(options_);
  for (std::int64_t token = 0; token < num_tokens; ++token, ++progress.values) {
    const float* token_values = values + token * token_stride;
    for (int head = 0; head < stats.shape.num_kv_heads; ++head) {
      const float* value = token_values + head * head_stride;
      if (!all_finite(value, dim)) {
        ++statistics_.num_non_finite;
        continue;
      }
      HeadStatistics& sums = stats.heads[head];
      for (int i = 0; i < dim; ++i) sums.value_mean_sum[i] += static_cast<double>(value[i]);
      ++sums.num_values;
    }
    if (const std::int64_t slot = sampler.slot(progress.values); slot >= 0) {
      store(token_values, head_stride, stats.shape.num_kv_heads, dim, slot, &stats.sample.values);
    }
  }
  if (options_.raw_targets) {
    for (int head = 0; head < stats.shape.num_kv_heads; ++head) {
      add_covariance(values + head * head_stride, token_stride, dim, num_tokens,
                     &stats.heads[head].value_covariance);
    }
  }
}

void Collector::on_attention(int layer, const LayerShape& shape, float scale, const float* queries,
                             std::int64_t q_token_stride, std::int64_t q_head_stride,
                             const float* outputs, std::int64_t out_token_stride,
                             std::int64_t out_head_stride, const std::int32_t* positions,
                             std::int64_t num_tokens) {
  LayerStatistics& stats = layer_for(layer, shape);
  require(layer, "num_q_heads", stats.shape.num_q_heads);
  require(layer, "head_dim_k", stats.shape.head_dim_k);
  require(layer, "head_dim_v", stats.shape.head_dim_v);
  const auto [num_q_heads, num_kv_heads, k_dim, v_dim] = stats.shape;
  if (num_q_heads % num_kv_heads != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                layer_text(layer) + ": " + std::to_string(num_q_heads) +
                    " query heads cannot share " + std::to_string(num_kv_heads) +
                    " KV heads evenly; legal: multiples of the KV heads");
  }
  const int q_heads_per_kv_head = num_q_heads / num_kv_heads;
  stats.attention_scale = scale;
  row_block_.resize(static_cast<std::size_t>(kBlockRows) * k_dim);
  output_block_.resize(static_cast<std::size_t>(kBlockRows) * v_dim);
  for (int kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
    HeadStatistics& sums = stats.heads[kv_head];
    sums.query_covariance.resize(static_cast<std::size_t>(k_dim) * k_dim);
    sums.output_covariance.resize(static_cast<std::size_t>(v_dim) * v_dim);
    std::int64_t num_rows = 0;
    const auto flush = [&] {
      add_outer_products(row_block_, num_rows, k_dim, &product_, &sums.query_covariance);
      add_outer_products(output_block_, num_rows, v_dim, &product_, &sums.output_covariance);
      sums.num_queries += num_rows;
      num_rows = 0;
    };
    for (std::int64_t token = 0; token < num_tokens; ++token) {
      for (int i = 0; i < q_heads_per_kv_head; ++i) {
        const int q_head = kv_head * q_heads_per_kv_head + i;
        const float* query = queries + token * q_token_stride + q_head * q_head_stride;
        const float* output = outputs + token * out_token_stride + q_head * out_head_stride;
        if (!all_finite(query, k_dim) || !all_finite(output, v_dim)) {
          ++statistics_.num_non_finite;
          continue;
        }
        std::copy_n(query, k_dim, row_block_.data() + num_rows * k_dim);
        std::copy_n(output, v_dim, output_block_.data() + num_rows * v_dim);
        if (++num_rows == kBlockRows) flush();
      }
    }
    if (num_rows > 0) flush();
  }
  Progress& progress = progress_[layer];
  const Sampler sampler(options_.seed ^ kQueryStream, options_.sampled_queries, 0);
  for (std::int64_t token = 0; token < num_tokens; ++token, ++progress.attention) {
    if (const std::int64_t slot = sampler.slot(progress.attention); slot >= 0) {
      store(queries + token * q_token_stride, q_head_stride, num_q_heads, k_dim, slot,
            &stats.sample.queries);
      store(positions[token], slot, &stats.sample.query_positions);
    }
  }
}

}  // namespace oscar::calibrate
