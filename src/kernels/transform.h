// y = x·M: a codec operation, so each output is summed over i ascending, mul then add. Included
// after one ISA header of simd/.
//
// Blocks of rows × columns stay in registers; the columns are vectors, so the order of the sums
// does not depend on the width.
#pragma once

#include "kernels/tile_panel.h"

namespace oscar::kernels {
namespace {

template <int num_rows, int num_vectors>
inline void transform_block(const TransformParams& params, const float* x, const float* matrix,
                            float* y) {
  simd::F sums[num_rows][num_vectors] = {};
  for (int i = 0; i < params.head_dim; ++i) {
    const float* matrix_row = matrix + i * params.head_dim;
#pragma GCC unroll 8
    for (int v = 0; v < num_vectors; ++v) {
      const simd::F m = simd::load(matrix_row + v * simd::kWidth);
#pragma GCC unroll 8
      for (int r = 0; r < num_rows; ++r) {
        const simd::F product = simd::load_broadcast(x + r * params.x_stride + i) * m;
        sums[r][v] = sums[r][v] + product;
      }
    }
  }
  for (int r = 0; r < num_rows; ++r) {
    for (int v = 0; v < num_vectors; ++v) {
      simd::store(y + r * params.y_stride + v * simd::kWidth, sums[r][v]);
    }
  }
}

// Columns from `column` on, num_vectors at a time as long as they last; returns the next one.
template <int num_rows, int num_vectors>
inline int transform_columns(const TransformParams& params, const float* x, float* y, int column) {
  constexpr int kColumns = num_vectors * simd::kWidth;
  for (; column + kColumns <= params.head_dim; column += kColumns) {
    transform_block<num_rows, num_vectors>(params, x, params.matrix + column, y + column);
  }
  return column;
}

// Few rows take many columns at a time: they read whole rows of the matrix, so that it streams from
// memory once, and have enough sums that none waits for its last addition.
template <int num_rows>
inline void transform_block_of_rows(const TransformParams& params, std::int64_t row) {
  constexpr int kFewest = 16 / simd::kWidth;
  const float* x = params.x + row * params.x_stride;
  float* y = params.y + row * params.y_stride;
  int column = 0;
  if constexpr (num_rows <= simd::kTransformFewRows) {
    column = transform_columns<num_rows, simd::kTransformVectors>(params, x, y, column);
    column = transform_columns<num_rows, simd::kTransformVectors / 2>(params, x, y, column);
  }
  transform_columns<num_rows, kFewest>(params, x, y, column);
}

inline void transform_rows_generic(const TransformParams& params) {
  std::int64_t row = 0;
  for (; row + simd::kTransformRows <= params.num_rows; row += simd::kTransformRows) {
    transform_block_of_rows<simd::kTransformRows>(params, row);
  }
  for_each_row_block<simd::kTransformFewRows>(
      static_cast<int>(params.num_rows - row),
      [&]<int num_rows>(int few) { transform_block_of_rows<num_rows>(params, row + few); });
}

}  // namespace
}  // namespace oscar::kernels
