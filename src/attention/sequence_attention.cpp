#include "attention/sequence_attention.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "base/error.h"
#include "base/parallel.h"

namespace oscar::attention {

const float* SequenceAttention::decode(const cache::SequenceView& sequence,
                                       const cache::GroupStore& store, const cache::SideCoder& side,
                                       AlignedBuffer<float>* rows) {
  const std::int64_t width = side.coder->row_values();
  const auto size = static_cast<std::uint64_t>(sequence.num_tokens * width);
  if (rows->size() < size) *rows = AlignedBuffer<float>(size);
  const std::int64_t num_pages = (sequence.num_tokens + kPageSize - 1) / kPageSize;
  parallel_for(num_threads_, num_pages, [&](std::int64_t page, int) {
    const std::int64_t first = page * kPageSize;
    std::array<std::int32_t, kPageSize> positions;
    std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(first));
    store.read(side, std::int64_t{sequence.block_table[page]} * kPageSize,
               std::min<std::int64_t>(kPageSize, sequence.num_tokens - first), positions.data(),
               rows->data() + first * width);
  });
  return rows->data();
}

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
  if (sequence.k_store != nullptr) {
    params.kv.k_rows = decode(sequence, *sequence.k_store, sequence.codec->key_side(), &key_rows_);
    params.kv.v_rows =
        decode(sequence, *sequence.v_store, sequence.codec->value_side(), &value_rows_);
  }
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
