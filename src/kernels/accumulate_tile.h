// out += p·v for a tile of decoded values. Included after one ISA header of simd/.
//
// No weight is skipped: a NaN in v reaches the output even where p is 0, so callers pass written
// tokens only.
#pragma once

#include "kernels/tile_panel.h"

namespace oscar::kernels {
namespace {

template <int num_vectors>
inline void accumulate_columns(const AccumulateTileParams& params, int column) {
  for_each_row_block<simd::kTileRows>(params.num_rows, [&]<int num_rows>(int row) {
    float* out = params.out + row * params.out_stride + column;
    simd::F sums[num_rows][num_vectors];
    for (int r = 0; r < num_rows; ++r) {
      for (int v = 0; v < num_vectors; ++v) {
        sums[r][v] = simd::load(out + r * params.out_stride + v * simd::kWidth);
      }
    }
    multiply_panel(params.p + row * params.p_stride, params.p_stride, params.v + column,
                   params.v_stride, params.num_tokens, sums);
    for (int r = 0; r < num_rows; ++r) {
      for (int v = 0; v < num_vectors; ++v) {
        simd::store(out + r * params.out_stride + v * simd::kWidth, sums[r][v]);
      }
    }
  });
}

inline void accumulate_tile_generic(const AccumulateTileParams& params) {
  constexpr int kColumns = simd::kTileVectors * simd::kWidth;
  int column = 0;
  for (; column + kColumns <= params.head_dim; column += kColumns) {
    accumulate_columns<simd::kTileVectors>(params, column);
  }
  for (; column < params.head_dim; column += simd::kWidth) accumulate_columns<1>(params, column);
}

}  // namespace
}  // namespace oscar::kernels
