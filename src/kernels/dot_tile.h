// logits = q·kᵀ for a tile of decoded keys. Included after one ISA header of simd/.
//
// A panel of keys is transposed once into a stack buffer that fits L1 (16 kB at head_dim 128 with
// 16 lanes), so that tokens lie in lanes and a row of queries needs no horizontal sums.
#pragma once

#include "kernels/tile_panel.h"

namespace oscar::kernels {
namespace {

constexpr int kPanelTokens = simd::kTileVectors * simd::kWidth;

// panel[d][token], tokens past num_tokens as zeros.
inline void transpose_keys(const float* keys, std::int64_t stride, int num_tokens, int head_dim,
                           float* panel) {
  for (int first = 0; first < kPanelTokens; first += simd::kWidth) {
    const int count = num_tokens - first;
    for (int d = 0; d < head_dim; d += simd::kWidth) {
      simd::F block[simd::kWidth] = {};
#pragma GCC unroll 16
      for (int t = 0; t < simd::kWidth; ++t) {
        if (t < count) block[t] = simd::load(keys + (first + t) * stride + d);
      }
      simd::transpose(block);
      for (int i = 0; i < simd::kWidth; ++i) {
        simd::store(panel + (d + i) * kPanelTokens + first, block[i]);
      }
    }
  }
}

inline void dot_tile_generic(const DotTileParams& params) {
  alignas(64) float panel[kMaxHeadDim * kPanelTokens];
  for (int first = 0; first < params.num_tokens; first += kPanelTokens) {
    const int num_tokens =
        params.num_tokens - first < kPanelTokens ? params.num_tokens - first : kPanelTokens;
    transpose_keys(params.k + first * params.k_stride, params.k_stride, num_tokens, params.head_dim,
                   panel);
    for_each_row_block<simd::kTileRows>(params.num_rows, [&]<int num_rows>(int row) {
      simd::F sums[num_rows][simd::kTileVectors] = {};
      multiply_panel(params.q + row * params.q_stride, params.q_stride, panel, kPanelTokens,
                     params.head_dim, sums);
      for (int r = 0; r < num_rows; ++r) {
        float* logits = params.logits + (row + r) * params.logits_stride + first;
        for (int v = 0; v * simd::kWidth < num_tokens; ++v) {
          const int left = num_tokens - v * simd::kWidth;
          const int count = left < simd::kWidth ? left : simd::kWidth;
          float* out = logits + v * simd::kWidth;
          const simd::F before =
              params.accumulate ? simd::load_partial(out, count, 0.0f) : simd::F{};
          simd::store_partial(out, sums[r][v] + before, count);
        }
      }
    });
  }
}

}  // namespace
}  // namespace oscar::kernels
