// One task of attention: a block of queries of one KV head over some pages of the cache.
#pragma once

#include <cstdint>

#include "attention/attention.h"
#include "attention/mean_term.h"
#include "attention/page_mask.h"
#include "attention/scratch.h"

namespace oscar::attention {

struct BlockId {
  int kv_head = 0;
  std::int64_t query_block = 0;
};

// The rows of a block within the whole: which queries, which query heads.
struct BlockRows {
  int kv_head;
  int group;  // query heads per KV head
  std::int64_t first_query;
  std::int64_t num_queries;
  std::int64_t num_rows;  // num_queries · group

  BlockRows(const Plan& plan, const BlockId& block);
  std::int64_t query(std::int64_t row) const { return first_query + row / group; }
  std::int64_t q_head(std::int64_t row) const {
    return std::int64_t{kv_head} * group + row % group;
  }
};

class Block {
 public:
  // Gathers the queries and brings them into the basis of the codes.
  Block(const Plan& plan, const Params& params, const BlockId& block, const Scratch& scratch,
        const State& state) noexcept;

  // Adds pages [first_page, last_page) of the sequence to the state.
  void visit_pages(std::int64_t first_page, std::int64_t last_page) noexcept;

 private:
  void load_queries() noexcept;
  void quantize_queries() noexcept;
  void visit_page(std::int64_t page) noexcept;
  void code_logits(const PageMask& mask, std::int64_t page, float* logits) noexcept;
  void copy_logits(const PageMask& mask, std::int64_t page, float* logits) noexcept;
  void finish_logits(const PageMask& mask, std::int64_t page) noexcept;
  void rescale_state() noexcept;
  void split_weights(const PageMask& mask) noexcept;
  void add_code_values(const PageMask& mask, std::int64_t page) noexcept;
  void add_copy_values(const PageMask& mask, std::int64_t page, const float* weights) noexcept;

  bool has_page(std::int64_t page) const { return page * kPageSize < num_kv_; }
  std::int64_t page_id(std::int64_t page) const;
  const std::uint8_t* k_plane(std::int64_t page) const;
  const std::uint8_t* v_plane(std::int64_t page) const;
  void page_positions(std::int64_t page, int num_cells, std::int32_t* positions) const;

  const Params& params_;
  const std::int64_t num_kv_;
  const int dk_, dv_;
  const kernels::KernelSet& kernels_;
  const Scratch& scratch_;
  const State& state_;
  BlockRows rows_;
  bool has_copies_;
  bool integer_keys_, integer_values_;
  const float* q_rotated_;  // [num_rows][head_dim_k]
  MeanTerm mean_;
};

// Learned sinks, output transform, value mean, normalisation: writes out and lse of the block's
// rows.
void finish_block(const Params& params, const BlockRows& rows, const State& state,
                  float* scratch) noexcept;

// Adds `part` to `state`: both unnormalised, over different cells.
void merge_states(const State& state, const State& part, std::int64_t num_rows,
                  int head_dim_v) noexcept;

void clear_state(const State& state, std::int64_t num_rows, int head_dim_v) noexcept;

}  // namespace oscar::attention
