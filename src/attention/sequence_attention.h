// Attention over a sequence of the paged cache (cache/cache.h), for hosts without a cache of their
// own.
#pragma once

#include <cstdint>

#include "attention/attention.h"
#include "base/aligned_buffer.h"
#include "cache/cache.h"

namespace oscar::attention {

// The queries of the last num_queries tokens of the sequence, causal.
struct SequenceQueries {
  int num_q_heads = 0;
  std::int64_t num_queries = 0;
  const float* q = nullptr;  // [num_queries][num_q_heads][head_dim_k] raw basis, after RoPE
  float* out = nullptr;      // [num_queries][num_q_heads][head_dim_v]
  float* lse = nullptr;      // [num_queries][num_q_heads] natural log, or null
  float scale = 1.0f;
  float soft_cap = 0.0f;            // as in Params
  std::int32_t sliding_window = 0;  // as in Params
  const float* sinks = nullptr;     // [num_q_heads], as in Params
  bool float_path = false;          // as in Params
};

// Keeps the workspace from call to call; it grows with the largest call. One caller at a time.
class SequenceAttention {
 public:
  explicit SequenceAttention(int num_threads) : num_threads_(num_threads) {}
  // Throws Error(kInvalidArgument) naming the value that is out of range.
  void attend(const cache::SequenceView& sequence, const SequenceQueries& queries);

 private:
  int num_threads_;
  // Decoded rows of one side of a store: [num_tokens][num_kv_heads][head_dim].
  const float* decode(const cache::SequenceView& sequence, const cache::GroupStore& store,
                      const cache::SideCoder& side, AlignedBuffer<float>* rows);

  AlignedBuffer<std::uint8_t> workspace_;
  AlignedBuffer<float> key_rows_, value_rows_;
  AlignedBuffer<std::int32_t> positions_;
};

}  // namespace oscar::attention
