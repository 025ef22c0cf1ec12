// What the attention kernels read: one trivially copyable struct, shapes in comments. Semantics:
// attention/attention.h.
#pragma once

#include <cstdint>

#include "base/bf16.h"
#include "cuda/device_layout.h"

namespace oscar::cuda {

// Exact rows of sinks and recent tokens: values in the rotated basis, keys there with their mean
// or, with AttendParams::raw_q, as they came (docs/adr/0010-cuda-layout.md). Token t of a sequence
// lies in row t when t < sink_rows, else in row sink_rows + t % ring_rows.
struct ExactCopies {
  const bf16_t* rows =
      nullptr;  // [blocks][num_kv_heads][2: key, value][sink_rows + ring_rows][head_dim]
  const std::int32_t* blocks =
      nullptr;  // [num_seqs] block of the sequence, −1: none; null: no sequence has copies
  std::int32_t sink_rows = 0;  // = sink_tokens
  std::int32_t ring_rows = 0;  // ≥ recent_tokens + num_queries − 1
};

// The key mean as a logit term: Σ_f c[2f]·cos(w_f·j) + c[2f + 1]·sin(w_f·j) + c[2·num_pairs] for
// the token at position j.
struct MeanTerm {
  const float* coefficients = nullptr;  // [num_seqs][num_queries][num_q_heads][2·num_pairs + 1], of
                                        // q·b unscaled; null: none
  const float* tile = nullptr;  // [64][num_pairs][2] cos, sin of w_f·lo
  const float* start =
      nullptr;  // [max_pages][num_pairs][2] cos, sin of w_f·64·page, 16-byte aligned
  std::int32_t num_pairs = 0;  // ≤ head_dim / 2
};
inline constexpr int kHopperPrefillMeanPairs = 32;  // most pairs of the Hopper prefill kernel

struct AttendParams {
  const std::uint8_t* pages =
      nullptr;  // [num_pages][num_kv_heads] key plane | value plane, device order, 16-byte aligned
  std::int64_t page_stride_bytes = 0, head_stride_bytes = 0;
  std::int64_t num_pages = 0;  // checked builds refuse page ids beyond
  DevicePlane key, value;

  const std::int32_t* block_table = nullptr;  // [num_seqs][block_table_stride] page ids
  std::int64_t block_table_stride = 0;
  const std::int32_t* seq_lens =
      nullptr;  // [num_seqs] tokens in the cache, the queries' own included

  const bf16_t* q = nullptr;  // [num_seqs·num_queries][num_q_heads][head_dim] rotated basis, row
                              // stride q_token_stride
  // The same queries in the raw basis, for exact copies of keys as they came
  // (EncodeParams::raw_key_copies); 16-byte aligned, stride raw_q_token_stride. Null: copies of
  // keys are in the basis of q.
  const bf16_t* raw_q = nullptr;
  bf16_t* out = nullptr;  // as q, rotated basis of the values
  // Of the inverse of the values' transform (run_prepare_transform of encode.h), 16-byte aligned,
  // head sizes 64 and 128: outputs in the raw basis. Null: in the rotated one.
  const void* out_image = nullptr;
  float* lse = nullptr;  // [num_seqs·num_queries][num_q_heads] natural log, or null
  // In elements.
  std::int64_t q_token_stride = 0, raw_q_token_stride = 0, out_token_stride = 0;

  ExactCopies copies;
  std::int32_t sink_tokens = 0, recent_tokens = 0;
  MeanTerm mean;

  std::int32_t num_seqs = 0;
  std::int32_t num_queries = 1;  // the last tokens of each sequence, causal
  std::int32_t num_q_heads = 0, num_kv_heads = 0;
  float scale = 1.0f;                    // on q·k
  float soft_cap = 0.0f;                 // 0: none
  std::int32_t sliding_window = 0;       // 0: none
  const float* learned_sinks = nullptr;  // [num_q_heads] logits, or null

  // From the plan.
  std::int32_t q_heads_per_kv_head = 0;
  // Blocks of one (sequence, KV head, row block); 0: equal ranges over all of them.
  std::int32_t num_splits = 0;
  std::int32_t num_row_blocks = 1;
  float* partials = nullptr;  // [grid][2][rows·(head_dim + 2)]
  std::int32_t* counters =
      nullptr;  // [num_seqs·num_kv_heads·num_row_blocks], zero between launches
  std::int32_t* faults = nullptr;  // [1] checked builds: 1 when a page id was out of range
  bool overlap_previous = false;   // launched programmatically: see plan.h
};

}  // namespace oscar::cuda
