// Streamed statistics of one forward pass: what calibration sees of a model. Memory does not depend
// on the text's length.
//
// Per (layer, KV head): C_Q = (1/N) Σ qᵀq over the query heads of the group, after RoPE; C_S =
// (1/N) Σ oᵀo with o the attention output of each query head before W_O, which is (1/N) VᵀSᵀSV
// summed row by row (2605.17757, section 3); the mean key before RoPE; the mean value; and a
// fixed-size sample of key, value and query rows with their positions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "format/artefact.h"
#include "kernels/rope_table.h"

namespace oscar::calibrate {

struct LayerShape {
  int num_q_heads = 0, num_kv_heads = 0, head_dim_k = 0, head_dim_v = 0;
};

struct HeadStatistics {
  std::vector<double> query_covariance;   // C_Q sum, [head_dim_k]²
  std::vector<double> output_covariance;  // C_S sum, [head_dim_v]²
  std::vector<double> key_mean_sum;       // before RoPE, [head_dim_k]
  std::vector<double> key_square_sum;     // of each channel before RoPE, [head_dim_k]
  std::vector<double> value_mean_sum;     // [head_dim_v]
  // KᵀK (keys after RoPE) and VᵀV, [head_dim_k]² and [head_dim_v]²; empty unless asked for.
  std::vector<double> key_covariance, value_covariance;
  std::int64_t num_queries = 0;  // query rows (tokens × query heads of the group)
  std::int64_t num_tokens = 0;   // rows in the key sums
  std::int64_t num_values = 0;   // rows in the value sum
};

// Sampled rows of one layer: the same tokens for every head and every layer, so that attention
// among them can be computed. The first sink tokens are always there, the rest is a uniform choice.
// A row that held NaN or Inf stays as it is, to be left out together with its token.
struct LayerSample {
  std::vector<std::int32_t> key_positions;  // [num_sampled_keys]
  std::vector<float> keys, values;  // [num_sampled_keys][num_kv_heads][head_dim], keys after RoPE
  std::vector<std::int32_t> query_positions;  // [num_sampled_queries]
  std::vector<float> queries;  // [num_sampled_queries][num_q_heads][head_dim_k], after RoPE
  std::int64_t num_sinks = 0;  // leading keys of the sample that stand for themselves alone
};

struct LayerStatistics {
  LayerShape shape;
  int rope = -1;  // index into Statistics::ropes; −1: not known, the mean key is after RoPE
  float attention_scale = 1.0f;
  std::vector<HeadStatistics> heads;  // [num_kv_heads]
  LayerSample sample;
  std::int64_t num_tokens = 0;  // keys seen, those left out included
};

struct Statistics {
  std::vector<RopeSpec> ropes;
  std::map<int, LayerStatistics> layers;  // by the model's layer index
  std::int64_t num_non_finite = 0;        // rows left out because they held NaN or Inf
};

struct CollectorOptions {
  std::int64_t sampled_keys = 512;     // a layer
  std::int64_t sampled_queries = 256;  // a layer
  std::uint64_t seed = 1;
  bool raw_targets = false;  // also KᵀK and VᵀV
};

// Fed by the host in any order of layers; for one layer tokens come in order. Not thread-safe.
// Rows are [num_tokens][num_heads][head_dim] with strides in floats. A part of the shape that a
// call does not need may be 0. Throws Error(kMismatch) where a layer's shape or RoPE changes on the
// way, Error(kInvalidArgument) for shapes that no head group fits.
class Collector {
 public:
  explicit Collector(CollectorOptions options);
  void on_keys(int layer, const LayerShape& shape, const RopeSpec* rope, const RopeTable* table,
               const float* keys, std::int64_t token_stride, std::int64_t head_stride,
               const std::int32_t* positions, std::int64_t num_tokens);
  void on_values(int layer, const LayerShape& shape, const float* values, std::int64_t token_stride,
                 std::int64_t head_stride, std::int64_t num_tokens);
  void on_attention(int layer, const LayerShape& shape, float scale, const float* queries,
                    std::int64_t q_token_stride, std::int64_t q_head_stride, const float* outputs,
                    std::int64_t out_token_stride, std::int64_t out_head_stride,
                    const std::int32_t* positions, std::int64_t num_tokens);
  const Statistics& statistics() const { return statistics_; }

 private:
  // Tokens seen so far in each of a layer's three streams.
  struct Progress {
    std::int64_t keys = 0, values = 0, attention = 0;
  };

  LayerStatistics& layer_for(int layer, const LayerShape& shape);
  // sum += Σ row·rowᵀ over the finite rows of a head.
  void add_covariance(const float* rows, std::int64_t token_stride, int head_dim,
                      std::int64_t num_tokens, std::vector<double>* sum);
  int rope_index(const RopeSpec* rope);

  CollectorOptions options_;
  Statistics statistics_;
  std::map<int, Progress> progress_;
  std::vector<float> row_block_, output_block_, product_;  // scratch of a rank update
};

}  // namespace oscar::calibrate
