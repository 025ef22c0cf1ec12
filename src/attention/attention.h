// Attention over a packed cache: softmax(q·kᵀ·scale + mask)·v with codes where there is no exact
// copy.
//
// A (query, token) pair uses the token's exact copy when there is one and the token is a sink
// (position < sink_tokens) or recent (query position − token position < recent_tokens, where that
// is not 0); otherwise the codes. So a query's result does not depend on how the prompt was cut
// into chunks. Nothing attended: out = 0, lse = −inf.
//
// Codes are attended in integers: query rows and weights in 16 bits against the codes
// (kernels.h), where a side has codes and Params::float_path does not say otherwise.
//
// plan() is pure arithmetic; run() neither allocates nor throws.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/bf16.h"
#include "cache/layer_codec.h"
#include "format/plane_layout.h"

namespace oscar::attention {

struct Shape {
  std::int64_t num_queries = 1;           // query tokens of one sequence
  std::int64_t num_kv = 0;                // cache cells seen, masked ones included
  int num_q_heads = 1, num_kv_heads = 1;  // ratio 1..16 (larger ratios work, in blocks)
  int head_dim_k = 0, head_dim_v = 0;
};

struct Plan {
  Shape shape;
  int num_threads = 1;
  std::int64_t queries_per_block = 1;  // of one KV head
  std::int64_t num_query_blocks = 1;
  int num_splits = 1;  // of the cells, merged at the end
  std::int64_t pages_per_split = 1;
  std::size_t workspace_bytes = 0;  // caller's, 64-byte aligned
};

// Throws Error(kInvalidArgument) naming the value that is out of range.
Plan plan(const Shape& shape, int num_threads);

// One sequence's cells. Cell c lies in page block_table[c / 64] at offset c % 64.
struct KvView {
  PlaneView k, v;
  // Instead of planes, for methods in a layout of their own: [num_kv][num_kv_heads][head_dim]
  // decoded rows, rotated, finite everywhere. Both or none.
  const float* k_rows = nullptr;
  const float* v_rows = nullptr;
  // [⌈num_kv/64⌉] page ids; null: page = first_page + c / 64.
  const std::int32_t* block_table = nullptr;
  std::int64_t first_page = 0;
  // [num_kv], −1: never written (skipped whatever the mask says); null: position = c.
  const std::int32_t* cell_positions = nullptr;
  // [num_kv] row of the copies, −1: none; null: no copies.
  const std::int32_t* copy_slots = nullptr;
  const bf16_t* k_copies = nullptr;  // [slots][num_kv_heads][head_dim_k], raw basis
  const bf16_t* v_copies = nullptr;  // [slots][num_kv_heads][head_dim_v], raw basis
};

struct Params {
  // [num_queries][num_q_heads][head_dim_k] raw basis, after RoPE; strides in floats.
  const float* q = nullptr;
  std::int64_t q_query_stride = 0, q_head_stride = 0;
  float* out = nullptr;  // [num_queries][num_q_heads][head_dim_v] raw basis
  std::int64_t out_query_stride = 0, out_head_stride = 0;
  // [num_queries][num_q_heads] natural log of the softmax sum, learned sinks included; or null.
  float* lse = nullptr;
  // [num_queries]; needed for causal, sliding_window and the recent rule. Null: none of the three.
  const std::int32_t* query_positions = nullptr;

  KvView kv;
  const cache::LayerCodec* codec = nullptr;

  float scale = 1.0f;     // on q·k
  float soft_cap = 0.0f;  // 0: none; logit = soft_cap·tanh(logit/soft_cap), before masks
  bool causal = false;    // token position ≤ query position
  // 0: none; query position − token position < sliding_window (the token itself counts).
  std::int32_t sliding_window = 0;
  // [num_queries][num_kv] F16, added to the logit (−inf hides), stride in elements; null: none.
  const std::uint16_t* mask_f16 = nullptr;
  std::int64_t mask_stride = 0;
  // [num_q_heads] ALiBi: the mask value is multiplied by it; null: 1.
  const float* mask_slopes = nullptr;
  // [num_q_heads] learned logits that join the softmax sum and carry no value; or null.
  const float* sinks = nullptr;
  std::int32_t sink_tokens = 0, recent_tokens = 0;
  bool float_path = false;  // codes (rows: always) in single precision instead of integers
};

void run(const Plan& plan, const Params& params, void* workspace) noexcept;

// Softmax state of one query head; merge is associative and the empty state is neutral.
// out_a/out_b: [head_dim_v] normalised outputs with their lse; the result goes to out_a, lse_a.
void merge(float* out_a, float* lse_a, const float* out_b, float lse_b, int head_dim_v) noexcept;

}  // namespace oscar::attention
