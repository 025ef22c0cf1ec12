// Rotations by position, exact and small: position = 64·hi + lo, and a rotation is the product of
// the two table entries.
#pragma once

#include <cstdint>
#include <vector>

#include "format/rope_spec.h"

namespace oscar {

inline constexpr int kRopeTile = 64;

// Immutable after construction; thread-safe. Positions from 0 to max_position.
class RopeTable {
 public:
  RopeTable(RopeSpec spec, std::int32_t max_position);

  const RopeSpec& spec() const { return spec_; }

  // x: [head_dim], rotated in place by `position` (negative: rotated back), magnitude included
  // (divided out when rotating back).
  void rotate(float* x, std::int32_t position) const;
  void rotate_back(float* x, std::int32_t position) const;

  // The constant table of a tile for the logit term: for lo in [0, 64) and pair f
  // tile()[lo·2·num_pairs + 2f] = cos(w_f·lo), [… + 2f + 1] = sin(w_f·lo).
  const float* tile() const { return tile_.data(); }

  // q·RoPE_j(b) = Σ_f coefficients[2f]·cos(w_f·(j − start)) + coefficients[2f + 1]·sin(w_f·(j −
  // start)) + (channels not rotated) for every j: folds `start` in. q, b: [head_dim] (q after RoPE
  // and scaled as the caller likes). Returns the constant part.
  float fold(const float* q, const float* b, int head_dim, std::int32_t start,
             float* coefficients) const;

 private:
  struct Rotation {
    double cos, sin;
  };
  // By a position ≥ 0; past max_position it is computed instead of looked up.
  Rotation rotation(std::int32_t position, int pair) const;

  RopeSpec spec_;
  std::vector<double> lo_;  // [kRopeTile][num_pairs][2] cos, sin
  std::vector<double> hi_;  // [max_position/64 + 1][num_pairs][2]
  std::vector<float> tile_;
};

}  // namespace oscar
