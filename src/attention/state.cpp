#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/block.h"

namespace oscar::attention {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

}  // namespace

void clear_state(const State& state, std::int64_t num_rows, int head_dim_v) noexcept {
  std::fill_n(state.out_codes, num_rows * head_dim_v, 0.0f);
  std::fill_n(state.out_copies, num_rows * head_dim_v, 0.0f);
  std::fill_n(state.max, num_rows, kNothing);
  std::fill_n(state.sum, num_rows, 0.0f);
  std::fill_n(state.copy_weight, num_rows, 0.0f);
}

void merge_states(const State& state, const State& part, std::int64_t num_rows,
                  int head_dim_v) noexcept {
  for (std::int64_t row = 0; row < num_rows; ++row) {
    if (part.max[row] == kNothing) continue;
    const float max = std::max(state.max[row], part.max[row]);
    const float a = std::exp(state.max[row] - max), b = std::exp(part.max[row] - max);
    for (std::int64_t i = row * head_dim_v; i < (row + 1) * head_dim_v; ++i) {
      state.out_codes[i] = a * state.out_codes[i] + b * part.out_codes[i];
      state.out_copies[i] = a * state.out_copies[i] + b * part.out_copies[i];
    }
    state.max[row] = max;
    state.sum[row] = a * state.sum[row] + b * part.sum[row];
    state.copy_weight[row] = a * state.copy_weight[row] + b * part.copy_weight[row];
  }
}

void finish_block(const Params& params, const BlockRows& rows, const State& state,
                  float* scratch) noexcept {
  const cache::LayerCodec& codec = *params.codec;
  const int dv = codec.v_layout().head_dim;
  const float* const matrix = codec.output_transform(rows.kv_head);
  const float* const mean = codec.value_mean(rows.kv_head);
  const float* codes = state.out_codes;
  if (matrix != nullptr) {
    codec.kernels().transform_rows({.x = state.out_codes,
                                    .matrix = matrix,
                                    .y = scratch,
                                    .num_rows = rows.num_rows,
                                    .x_stride = dv,
                                    .y_stride = dv,
                                    .head_dim = dv});
    codes = scratch;
  }
  for (std::int64_t row = 0; row < rows.num_rows; ++row) {
    float* const out = params.out + rows.query(row) * params.out_query_stride +
                       rows.q_head(row) * params.out_head_stride;
    float max = state.max[row], factor = 1.0f, sum = state.sum[row];
    if (params.sinks != nullptr) {
      const float sink = params.sinks[rows.q_head(row)];
      const float with_sink = std::max(max, sink);
      factor = std::exp(max - with_sink);
      sum = sum * factor + std::exp(sink - with_sink);
      max = with_sink;
    }
    if (params.lse != nullptr) {
      params.lse[rows.query(row) * (std::int64_t{codec.num_kv_heads()} * rows.group) +
                 rows.q_head(row)] = sum == 0.0f ? kNothing : max + std::log(sum);
    }
    if (state.sum[row] == 0.0f) {
      std::fill_n(out, dv, 0.0f);
      continue;
    }
    factor /= sum;
    const float code_weight = state.sum[row] - state.copy_weight[row];
    for (int d = 0; d < dv; ++d) {
      out[d] = factor * (codes[row * dv + d] + state.out_copies[row * dv + d]);
    }
    if (mean == nullptr) continue;
    for (int d = 0; d < dv; ++d) out[d] += factor * code_weight * mean[d];
  }
}

}  // namespace oscar::attention
