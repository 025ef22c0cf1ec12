// What the stored mean key adds to the logits of coded cells: q·RoPE_j(b) for the cell's position
// j.
//
// Per query row it is a constant (channels without rotation) plus Σ_f A_f cos(w_f j) + B_f sin(w_f
// j). Over a tile of 64 positions it is a product of a few coefficients a row with the columns of
// cache::RopeBasis; a tile's start goes into the coefficients (kernels::MeanTileParams).
#pragma once

#include <cstdint>
#include <limits>

#include "attention/scratch.h"

namespace oscar::attention {

class MeanTerm {
 public:
  // Fills scratch.mean_* from scratch.q_raw. No mean: active() is false.
  MeanTerm(const cache::LayerCodec& codec, int kv_head, std::int64_t num_rows,
           const Scratch& scratch) noexcept;

  bool active() const { return active_; }

  // logits[row][t] += the term for the cells of `seen` (bits of [0, num_cells)); other cells get
  // anything. positions: [num_cells]. tile_logits: scratch, [num_rows][64].
  void add(const std::int32_t* positions, int num_cells, std::uint64_t seen, float* logits,
           float* tile_logits) noexcept;

 private:
  void load_pairs(const float* mean) noexcept;
  void add_constant(float* logits) const noexcept;
  // logits[row][i] += the term at position start + i, i in [0, 64).
  void add_tile(std::int32_t start, float* logits) noexcept;
  // What the kernel has to turn scratch.mean_turn by to reach the tile at `start`; null: nothing.
  const float* step_to(std::int32_t start) noexcept;

  const cache::LayerCodec& codec_;
  const Scratch& scratch_;
  std::int64_t num_rows_;
  bool active_ = false;
  const cache::RopeBasis* basis_ = nullptr;  // null: only the constant

  // Start of the tile that scratch.mean_turn holds. From one tile to the next it is turned in
  // single precision, which adds an error of 2^-23 a step, and taken anew after kStepsInFloat.
  std::int64_t start_ = kNoStart;
  int steps_ = 0;

  static constexpr std::int64_t kNoStart = std::numeric_limits<std::int64_t>::min();
  static constexpr int kStepsInFloat = 15;
};

}  // namespace oscar::attention
