#include "attention/sequence_attention.h"

#include <string>

#include "base/error.h"

namespace oscar::attention {

void SequenceAttention::attend(const cache::SequenceView& sequence,
                               const SequenceQueries& queries) {
  const std::int64_t num_queries = queries.num_queries;
  if (num_queries < 0 || num_queries > sequence.num_tokens) {
    throw Error(ErrorCode::kInvalidArgument,
                "attention: num_queries is " + std::to_string(num_queries) + "; the sequence has " +
                    std::to_string(sequence.num_tokens) + " tokens");
  }
  const int dk = sequence.k.layout.head_dim, dv = sequence.v.layout.head_dim;
  const Shape shape{
      num_queries, sequence.num_tokens, queries.num_q_heads, sequence.codec->num_kv_heads(), dk,
      dv};
  const Plan plan = attention::plan(shape, num_threads_);
  if (workspace_.size() < plan.workspace_bytes)
    workspace_ = AlignedBuffer<std::uint8_t>(plan.workspace_bytes);
  if (positions_.size() < static_cast<std::uint64_t>(num_queries)) {
    positions_ = AlignedBuffer<std::int32_t>(static_cast<std::uint64_t>(num_queries));
  }
  for (std::int64_t i = 0; i < num_queries; ++i) {
    positions_[i] = static_cast<std::int32_t>(sequence.num_tokens - num_queries + i);
  }
  Params params;
  params.q = queries.q;
  params.q_query_stride = std::int64_t{queries.num_q_heads} * dk;
  params.q_head_stride = dk;
  params.out = queries.out;
  params.out_query_stride = std::int64_t{queries.num_q_heads} * dv;
  params.out_head_stride = dv;
  params.lse = queries.lse;
  params.query_positions = positions_.data();
  params.kv.k = sequence.k;
  params.kv.v = sequence.v;
  params.kv.block_table = sequence.block_table;
  params.kv.copy_slots = sequence.copy_slots;
  params.kv.k_copies = sequence.k_copies;
  params.kv.v_copies = sequence.v_copies;
  params.codec = sequence.codec;
  params.scale = queries.scale;
  params.soft_cap = queries.soft_cap;
  params.causal = true;
  params.sliding_window = queries.sliding_window;
  params.sinks = queries.sinks;
  params.sink_tokens = sequence.sink_tokens;
  params.recent_tokens = sequence.recent_tokens;
  params.float_path = queries.float_path;
  run(plan, params, workspace_.data());
}

}  // namespace oscar::attention
