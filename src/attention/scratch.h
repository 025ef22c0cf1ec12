// How run() uses its workspace. One carving function both sizes it (plan) and hands it out (run).
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/attention.h"

namespace oscar::attention {

// Takes 64-byte aligned pieces off a block of memory; over a null block it only counts.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<std::byte*>(base)) {}

  template <typename T>
  T* take(std::int64_t count) {
    T* const piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ +=
        (static_cast<std::size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  std::size_t used_bytes() const { return used_; }

 private:
  static constexpr std::size_t kAlignment = 64;
  std::byte* base_;
  std::size_t used_ = 0;
};

// Softmax state of the rows of one query block over some of the cells. Row = query ·
// q_heads_per_kv_head + head of the group. The output so far is Σ weight·v: in the rotated basis
// for codes, in the raw basis for copies.
struct State {
  float* out_codes;    // [num_rows][head_dim_v]
  float* out_copies;   // [num_rows][head_dim_v]
  float* max;          // [num_rows] m
  float* sum;          // [num_rows] Σ exp(logit − m)
  float* copy_weight;  // [num_rows] the copies' part of `sum`
};

// What one thread needs while it works on one task.
struct Scratch {
  float* q_raw;      // [num_rows][head_dim_k] times the scale
  float* q_rotated;  // [num_rows][head_dim_k]
  // The rows of q_rotated in bytes, as kernels::QuantizeQueriesParams has them.
  std::int8_t* q_bytes;  // [head_dim_k/4][num_rows][8]
  float* q_scales;       // [num_rows][num_groups ≤ head_dim_k / 16]
  float* q_sums;         // [num_rows][num_groups]
  float* k_tile;         // [64][head_dim_k]
  // The copies of a page's cells as a plane of 16 bits a value: [64][head_dim_k or head_dim_v].
  bf16_t* copies;
  float* v_tile;       // [64][head_dim_v]
  float* logits;       // [num_rows][64]
  float* copy_logits;  // [num_rows][64]
  float* rescale;      // [num_rows]
  float* finished;     // [num_rows][head_dim_v]
  // MeanTerm's, as kernels::MeanTileParams has them.
  float* mean_constants;   // [num_rows]
  float* mean_pairs;       // [num_rows][kMeanPairFloats]
  float* mean_turn;        // [2][kMeanPairFloats]
  std::uint64_t* visible;  // [queries_per_block] bit t: cell t of the page is attended
  std::uint64_t* copied;   // [queries_per_block] bit t: and by its exact copy
};

inline std::int64_t rows_per_block(const Plan& plan) {
  return plan.queries_per_block * (plan.shape.num_q_heads / plan.shape.num_kv_heads);
}
inline std::int64_t num_blocks(const Plan& plan) {
  return plan.num_query_blocks * plan.shape.num_kv_heads;
}

Scratch carve_scratch(const Plan& plan, Carver* carver);
State carve_state(const Plan& plan, Carver* carver);

// Workspace: one Scratch a thread, then one State a thread (num_splits 1) or one a task.
inline std::int64_t num_states(const Plan& plan) {
  return plan.num_splits == 1 ? plan.num_threads : num_blocks(plan) * plan.num_splits;
}

}  // namespace oscar::attention
