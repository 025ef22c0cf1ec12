// The mean key's part of the logits of a tile of positions. Included after one ISA header of simd/.
//
// About the tile's middle every cosine and every polynomial of even degree is even, the others are
// odd: half of the tile gives E and O, the logits get E + O there and E − O in the mirror.
#pragma once

#include "kernels/tile_panel.h"

namespace oscar::kernels {
namespace {

constexpr int kHalfTile = kPageSize / 2;

// The turn to the next tile: its angle plus the step's.
inline void advance_turn(float* turn, const float* step, int num_floats) {
  for (int i = 0; i < num_floats; i += simd::kWidth) {
    float* const sines = turn + kMeanPairFloats;
    const simd::F cosine = simd::load(turn + i), sine = simd::load(sines + i);
    const simd::F step_cosine = simd::load(step + i);
    const simd::F step_sine = simd::load(step + kMeanPairFloats + i);
    simd::store(turn + i, cosine * step_cosine - sine * step_sine);
    simd::store(sines + i, simd::fma(sine, step_cosine, cosine * step_sine));
  }
}

// (A, B) of every pair turned to the tile: A' = A·cos + B·sin, B' = B·cos − A·sin.
template <int num_rows>
inline void turn_pairs(const float* pairs, const float* turn, int num_floats,
                       float (*turned)[kMeanPairFloats]) {
  for (int i = 0; i < num_floats; i += simd::kWidth) {
    const simd::F cosines = simd::load(turn + i), sines = simd::load(turn + kMeanPairFloats + i);
#pragma GCC unroll 8
    for (int r = 0; r < num_rows; ++r) {
      const simd::F pair = simd::load(pairs + r * std::int64_t{kMeanPairFloats} + i);
      simd::store(turned[r] + i, simd::fma(simd::swap_pairs(pair), sines, pair * cosines));
    }
  }
}

// What a level of slow pairs gives: 16 coefficients a row, by degree, then by pair of a block.
template <int num_rows>
struct LevelSums {
  static constexpr int kVectors = kMeanPolynomials / simd::kWidth;
  simd::F of_row[num_rows][kVectors] = {};

  // Adds the blocks of num_pairs pairs that lie in `turned` from `first` on; returns where those of
  // the next level begin.
  template <int num_pairs>
  int add_blocks(const float* series, int num_blocks, int first,
                 const float (*turned)[kMeanPairFloats]) {
    for (int block = 0; block < num_blocks; ++block, first += 2 * num_pairs) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const simd::F factors = simd::load(series + block * kMeanPolynomials + v * simd::kWidth);
#pragma GCC unroll 8
        for (int r = 0; r < num_rows; ++r) {
          const simd::F pairs = simd::load_repeated<2 * num_pairs>(turned[r] + first, v);
          of_row[r][v] = simd::fma(pairs, factors, of_row[r][v]);
        }
      }
    }
    return first;
  }
};

// The polynomials' coefficients of slow pairs, which are linear in A' (even degrees) and B' (odd
// ones), to where the slow pairs were. The slower a pair, the fewer polynomials it needs: blocks
// of 1, 2, 4 and 8 pairs with 16, 8, 4 and 2 coefficients each.
template <int num_rows>
inline void project_slow_pairs(const MeanTileParams& params, const float* constants,
                               float (*turned)[kMeanPairFloats]) {
  LevelSums<num_rows> one, two, four, eight;
#pragma GCC unroll 8
  for (int r = 0; r < num_rows; ++r) {
    one.of_row[r][0] = simd::load_partial(constants + r, 1, 0.0f);
  }
  const int* const num_blocks = params.num_blocks;
  const float* series = params.series;
  int first = 2 * params.num_fast;
  first = one.template add_blocks<1>(series, num_blocks[0], first, turned);
  series += num_blocks[0] * kMeanPolynomials;
  first = two.template add_blocks<2>(series, num_blocks[1], first, turned);
  series += num_blocks[1] * kMeanPolynomials;
  first = four.template add_blocks<4>(series, num_blocks[2], first, turned);
  series += num_blocks[2] * kMeanPolynomials;
  eight.template add_blocks<8>(series, num_blocks[3], first, turned);
#pragma GCC unroll 8
  for (int r = 0; r < num_rows; ++r) {
    simd::fold_levels(one.of_row[r], two.of_row[r], four.of_row[r], eight.of_row[r]);
    float* const out = turned[r] + 2 * params.num_fast;
#pragma GCC unroll 4
    for (int v = 0; v < one.kVectors; ++v) simd::store(out + v * simd::kWidth, one.of_row[r][v]);
  }
}

// logits[r][…] += E ± O. coefficients: [num_rows][pair: even, odd]; columns: [num_pairs][2][32].
template <int num_rows>
inline void add_symmetric(const float (*coefficients)[kMeanPairFloats], const float* columns,
                          int num_pairs, float* logits, std::int64_t stride) {
  constexpr int kVectors = simd::kMeanVectors;
  for (int x = 0; x < kHalfTile; x += kVectors * simd::kWidth) {
    simd::F even[num_rows][kVectors] = {}, odd[num_rows][kVectors] = {};
    for (int i = 0; i < num_pairs; ++i) {
      const float* const column = columns + i * kPageSize + x;
      simd::F even_column[kVectors], odd_column[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        even_column[v] = simd::load(column + v * simd::kWidth);
        odd_column[v] = simd::load(column + kHalfTile + v * simd::kWidth);
      }
#pragma GCC unroll 8
      for (int r = 0; r < num_rows; ++r) {
        const simd::F a = simd::load_broadcast(coefficients[r] + 2 * i);
        const simd::F b = simd::load_broadcast(coefficients[r] + 2 * i + 1);
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) {
          even[r][v] = simd::fma(a, even_column[v], even[r][v]);
          odd[r][v] = simd::fma(b, odd_column[v], odd[r][v]);
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < num_rows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        float* const after = logits + r * stride + kHalfTile + x + v * simd::kWidth;
        float* const before = logits + r * stride + kHalfTile - x - (v + 1) * simd::kWidth;
        simd::store(after, simd::load(after) + (even[r][v] + odd[r][v]));
        simd::store(before, simd::load(before) + simd::reverse(even[r][v] - odd[r][v]));
      }
    }
  }
}

inline void mean_tile_generic(const MeanTileParams& params) {
  const int* const blocks = params.num_blocks;
  const int num_floats =
      2 * (params.num_fast + blocks[0] + 2 * blocks[1] + 4 * blocks[2] + 8 * blocks[3]);
  if (params.step != nullptr) advance_turn(params.turn, params.step, num_floats);
  for_each_row_block<simd::kByteRows>(params.num_rows, [&]<int num_rows>(int row) {
    alignas(64) float turned[num_rows][kMeanPairFloats];
    turn_pairs<num_rows>(params.pairs + row * std::int64_t{kMeanPairFloats}, params.turn,
                         num_floats, turned);
    project_slow_pairs<num_rows>(params, params.constants + row, turned);
    add_symmetric<num_rows>(turned, params.columns, params.num_fast + kMeanPolynomials / 2,
                            params.logits + row * params.logits_stride, params.logits_stride);
  });
}

}  // namespace
}  // namespace oscar::kernels
