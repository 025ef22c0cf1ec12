// Few functions that span every rotation within a tile of 64 positions: what attention needs to add
// q·RoPE_j(b) cheaply.
//
// A logit's part from the mean key b is Σ_f A_f cos(w_f x) + B_f sin(w_f x), x from the middle of a
// tile, −31.5 … 31.5; what is even in x needs half of it, so does what is odd:
//   fast pairs keep their own two columns cos(w_f x), sin(w_f x);
//   slow pairs, w_f·31.5 ≤ kMaxSlowPhase, share the Chebyshev polynomials T_0 … T_15 of x/31.5, in
//   which cos(w_f x) and sin(w_f x) have the coefficients 2·J_k(w_f·31.5) up to sign: past k = 15
//   below 3e-7. Slower ones need fewer: by kLevels 16, 8, 4 or 2.
// With base 10⁶ and 128 channels that is 34 columns where the pairs have 128, and 20 rows of 16
// coefficients for 55 slow pairs.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/rope_table.h"

namespace oscar::cache {

// Immutable after construction; thread-safe.
class RopeBasis {
 public:
  static constexpr int kPolynomials = kernels::kMeanPolynomials;  // by degree
  // Blocks of 1, 2, 4, 8 slow pairs with 16, 8, 4, 2 polynomials each, for phases up to these: what
  // is left out stays below 4e-7.
  static constexpr int kNumLevels = 4;
  static constexpr std::array<double, kNumLevels> kMaxSlowPhase = {5.0, 1.0, 0.09, 1.1e-3};

  explicit RopeBasis(const RopeSpec& spec);

  // Places of pairs in the order of kernels::MeanTileParams: fast ones, then slow ones, level by
  // level, each level filled up to whole blocks. −1: nothing in this place.
  int num_fast() const { return num_fast_; }
  int num_places() const { return static_cast<int>(pairs_.size()); }
  int pair(int place) const { return pairs_[place]; }
  const std::array<int, kNumLevels>& num_blocks() const { return num_blocks_; }
  // cos(w·31.5), sin(w·31.5): from a tile's start to its middle.
  double middle_cos(int place) const { return middle_[2 * place]; }
  double middle_sin(int place) const { return middle_[2 * place + 1]; }
  // [2][kMeanPairFloats] the turn from one tile to the next, as kernels::MeanTileParams::turn;
  // zeros where there is no pair.
  const float* step_turn() const { return step_turn_.data(); }

  // [num_fast + kPolynomials/2][2][32]: columns at x = 0.5 … 31.5, an even one and an odd one;
  // cos and sin of fast pairs, then the polynomials.
  int num_columns() const { return 2 * num_fast_ + kPolynomials; }
  const float* columns() const { return columns_.data(); }
  // [block][kPolynomials]: coefficients of cos in polynomials of even degree and of sin in those of
  // odd degree; in a block of n pairs the value of pair p and degree k is
  // [2n·(k / 2) + 2p + k % 2].
  const float* series() const { return series_.data(); }

 private:
  void place_pairs(const RopeSpec& spec);
  void fill_turns(const RopeSpec& spec);
  void fill_columns(const RopeSpec& spec);
  void fill_series(const RopeSpec& spec);

  int num_fast_ = 0;
  std::array<int, kNumLevels> num_blocks_{};
  std::vector<int> pairs_;
  std::vector<float> columns_, series_, step_turn_;
  std::vector<double> middle_;
};

}  // namespace oscar::cache
