// The mean key's part of the logits of a tile of positions. Included after one ISA header of simd/.
#pragma once

#include "kernels/accumulate_tile.h"

namespace oscar::kernels {
namespace {

// (A, B) of every pair turned to the tile: A' = A·cos + B·sin, B' = B·cos − A·sin.
inline void turn_pairs(const float* pairs, const float* turn, int num_floats, float* turned) {
  for (int i = 0; i < num_floats; i += simd::kWidth) {
    const simd::F pair = simd::load(pairs + i);
    const simd::F cosines = simd::load(turn + i), sines = simd::load(turn + kMeanPairFloats + i);
    simd::store(turned + i, simd::fma(simd::swap_pairs(pair), sines, pair * cosines));
  }
}

// The polynomials' coefficients, which are linear in A' (even degrees) and B' (odd ones).
template <int num_rows>
inline void project_slow_pairs(const MeanTileParams& params, const float* constants,
                               float (*turned)[kMeanPairFloats]) {
  constexpr int kVectors = kMeanPolynomials / simd::kWidth;
  simd::F sums[num_rows][kVectors] = {};
  for (int r = 0; r < num_rows; ++r) sums[r][0][0] = constants[r];
  for (int i = 0; i < params.num_slow; ++i) {
    simd::F series[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      series[v] = simd::load(params.series + i * kMeanPolynomials + v * simd::kWidth);
    }
    for (int r = 0; r < num_rows; ++r) {
      const simd::F pair = simd::broadcast_pair(turned[r] + 2 * (params.num_fast + i));
      for (int v = 0; v < kVectors; ++v) sums[r][v] = simd::fma(pair, series[v], sums[r][v]);
    }
  }
  for (int r = 0; r < num_rows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      simd::store(turned[r] + 2 * params.num_fast + v * simd::kWidth, sums[r][v]);
    }
  }
}

inline void mean_tile_generic(const MeanTileParams& params) {
  const int num_floats =
      (2 * (params.num_fast + params.num_slow) + simd::kWidth - 1) / simd::kWidth * simd::kWidth;
  for_each_row_block<simd::kByteRows>(params.num_rows, [&]<int num_rows>(int row) {
    alignas(64) float turned[num_rows][kMeanPairFloats];
    for (int r = 0; r < num_rows; ++r) {
      turn_pairs(params.pairs + (row + r) * std::int64_t{kMeanPairFloats}, params.turn, num_floats,
                 turned[r]);
    }
    project_slow_pairs<num_rows>(params, params.constants + row, turned);
    accumulate_tile_generic({.p = turned[0],
                             .v = params.columns,
                             .out = params.logits + row * params.logits_stride,
                             .num_rows = num_rows,
                             .num_tokens = 2 * params.num_fast + kMeanPolynomials,
                             .head_dim = kPageSize,
                             .p_stride = kMeanPairFloats,
                             .v_stride = kPageSize,
                             .out_stride = params.logits_stride});
  });
}

}  // namespace
}  // namespace oscar::kernels
