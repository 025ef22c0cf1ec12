// A synthetic attention layer for tests: queries, keys, values and the true causal attention
// output.
#pragma once

#include <cstdint>
#include <vector>

#include "calibrate/collector.h"
#include "kernels/rope_table.h"

namespace oscar::calibrate {

struct SyntheticOptions {
  LayerShape shape{.num_q_heads = 4, .num_kv_heads = 2, .head_dim_k = 64, .head_dim_v = 64};
  int num_tokens = 1024;
  std::uint64_t seed = 1;
  // Per channel: deviation of keys (before RoPE) and of queries, key offset (before RoPE).
  // Empty: 1, 1, 0. [head_dim_k], the same for every head.
  std::vector<float> key_deviation = {}, query_deviation = {}, key_offset = {};
  std::vector<float> value_offset = {};  // [head_dim_v]; empty: 0
};

// Rows [num_tokens][num_heads][head_dim]; positions 0, 1, 2, …
struct SyntheticLayer {
  LayerShape shape;
  int num_tokens = 0;
  float scale = 0;  // 1/√head_dim_k
  std::vector<float> queries, keys, values, outputs;
  std::vector<std::int32_t> positions;
};

// A RoPE over all channels of head_dim with base 10000, half-split.
RopeSpec synthetic_rope(int head_dim);

// table: rotates queries and keys; null: no RoPE.
SyntheticLayer make_synthetic(const SyntheticOptions& options, const RopeTable* table);

// Feeds the layer `chunk` tokens at a time, as a host does.
void feed(const SyntheticLayer& layer, int index, int chunk, const RopeTable* table,
          Collector* collector);

}  // namespace oscar::calibrate
