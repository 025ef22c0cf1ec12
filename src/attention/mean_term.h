// What the stored mean key adds to the logits of coded cells: q·RoPE_j(b) for the cell's position
// j.
//
// Per query row it is a constant (channels without rotation) plus Σ_f A_f cos(w_f j) + B_f sin(w_f
// j). Written over a run of consecutive positions j = start + i, the start is folded into A and B
// once per run, and the rest is a product with one constant table of cos(w_f i), sin(w_f i). Pairs
// that cannot move any logit of the block by more than a bound are left out.
#pragma once

#include <cstdint>

#include "attention/attention.h"
#include "attention/page_mask.h"
#include "attention/scratch.h"

namespace oscar::attention {

class MeanTerm {
 public:
  // Fills scratch.mean_* from scratch.q_raw. No mean: active() is false.
  MeanTerm(const cache::LayerCodec& codec, int kv_head, std::int64_t num_rows,
           const Scratch& scratch) noexcept;

  bool active() const { return active_; }

  // logits[row][t] += the term, for cells t < num_cells of the page; cells outside `seen` may be
  // left as they are. positions: [num_cells].
  void add(const std::int32_t* positions, int num_cells, std::uint64_t seen,
           float* logits) const noexcept;

 private:
  void choose_pairs(const float* base, int num_pairs) noexcept;
  void add_run(std::int32_t start, int first_cell, int num_cells, float* logits) const noexcept;

  const cache::LayerCodec& codec_;
  const Scratch& scratch_;
  std::int64_t num_rows_;
  bool active_ = false;
  const RopeTable* rope_ = nullptr;  // null: only the constant
  int num_kept_ = 0;                 // pairs, zero-padded to a multiple of 8
  int kept_[kMaxHeadDim / 2 + 8];    // pair of each kept column, −1: padding
};

}  // namespace oscar::attention
