// Few functions that span every rotation within a tile of 64 positions: what attention needs to add
// q·RoPE_j(b) cheaply.
//
// A logit's part from the mean key b is Σ_f A_f cos(w_f j) + B_f sin(w_f j). Over a tile j = start
// + i, 0 ≤ i < 64:
//   fast pairs keep their own two columns cos(w_f i), sin(w_f i);
//   slow pairs, w_f·31.5 ≤ kMaxSlowPhase, share the Chebyshev polynomials T_0 … T_15 of x = (i
//   − 31.5)/31.5, in which cos(w_f·31.5·x) and sin(w_f·31.5·x) have the coefficients
//   2·J_k(w_f·31.5) up to sign: past k = 15 below 3e-7.
// With base 10⁶ and 128 channels that is 34 columns where the pairs have 128.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/rope_table.h"

namespace oscar::cache {

// Immutable after construction; thread-safe.
class RopeBasis {
 public:
  static constexpr int kPolynomials = kernels::kMeanPolynomials;  // by degree
  static constexpr double kMaxSlowPhase = 5.0;

  explicit RopeBasis(const RopeSpec& spec);

  int num_fast() const { return static_cast<int>(fast_.size()); }
  int num_slow() const { return static_cast<int>(slow_.size()); }
  int num_pairs() const { return num_fast() + num_slow(); }
  int fast_pair(int i) const { return fast_[i]; }
  int slow_pair(int i) const { return slow_[i]; }
  // [2][kMeanPairFloats] the turn from one tile to the next, as kernels::MeanTileParams::turn;
  // zeros in the padding.
  const float* step_turn() const { return step_turn_.data(); }

  // [2·num_fast + kPolynomials][64]: a column over the tile in each row; cos and sin of a fast pair
  // follow each other, then the polynomials.
  int num_columns() const { return 2 * num_fast() + kPolynomials; }
  const float* columns() const { return columns_.data(); }

  // cos(w·31.5), sin(w·31.5) of slow pair i: from a tile's start to its middle.
  double middle_cos(int i) const { return middle_[2 * i]; }
  double middle_sin(int i) const { return middle_[2 * i + 1]; }
  // [num_slow][kPolynomials], about the middle: the coefficients of cos in the polynomials of even
  // degree and of sin in those of odd degree.
  const float* chebyshev() const { return chebyshev_.data(); }

 private:
  std::vector<int> fast_, slow_;
  std::vector<float> columns_, chebyshev_;
  std::vector<float> step_turn_;
  std::vector<double> middle_;
};

}  // namespace oscar::cache
