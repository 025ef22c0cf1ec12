// Exact BF16 copies of sinks and recent tokens: for each sequence a row for every sink and a ring
// for the rest.
//
// The ring holds recent_tokens + max_append_tokens rows, so that after an append of
// max_append_tokens every one of its queries still finds the recent_tokens before it. No ring where
// recent_tokens is 0.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/bf16.h"
#include "cache/layer_codec.h"

namespace oscar::cache {

class CopyStore {
 public:
  struct LayerShape {
    int num_kv_heads, head_dim_k, head_dim_v;
  };
  // max_tokens: the longest sequence. No rows at all: sink_tokens = recent_tokens = 0.
  CopyStore(const std::vector<LayerShape>& layers, int max_sequences, std::int32_t sink_tokens,
            std::int32_t recent_tokens, std::int64_t max_append_tokens, std::int64_t max_tokens);

  bool empty() const { return rows_per_sequence_ == 0; }
  // Rows of a layer: [max_sequences · rows_per_sequence][num_kv_heads][head_dim].
  const bf16_t* keys(int layer) const { return k_rows_[layer].data(); }
  const bf16_t* values(int layer) const { return v_rows_[layer].data(); }
  // [max_tokens] row of each token of the sequence, −1: none.
  const std::int32_t* slots(int sequence) const { return slots_.data() + sequence * max_tokens_; }

  // The sequence grows to num_tokens: the new tokens get rows, and what they push out of the ring
  // loses its own.
  void grow(int sequence, std::int64_t old_tokens, std::int64_t num_tokens);
  void shrink(int sequence, std::int64_t old_tokens, std::int64_t num_tokens);
  void copy_sequence(int from, int to, std::int64_t num_tokens);

  // Stores the rows of tokens [first_token, first_token + rows.num_tokens). A row with NaN or Inf
  // becomes zeros.
  void store_keys(int sequence, int layer, std::int64_t first_token, const Rows& rows);
  void store_values(int sequence, int layer, std::int64_t first_token, const Rows& rows);
  std::uint64_t bytes() const;

 private:
  void store(int sequence, std::int64_t first_token, const Rows& rows, int num_kv_heads,
             int head_dim, bf16_t* dst);

  std::vector<LayerShape> layers_;
  std::int64_t sink_tokens_, ring_tokens_, rows_per_sequence_, max_tokens_;
  std::vector<AlignedBuffer<bf16_t>> k_rows_, v_rows_;  // by layer
  AlignedBuffer<std::int32_t> slots_;                   // [max_sequences][max_tokens]
};

}  // namespace oscar::cache
