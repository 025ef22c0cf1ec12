#include "cache/copy_store.h"

#include <algorithm>

namespace oscar::cache {

CopyStore::CopyStore(const std::vector<LayerShape>& layers, int max_sequences,
                     std::int32_t sink_tokens, std::int32_t recent_tokens,
                     std::int64_t max_append_tokens, std::int64_t max_tokens)
    : layers_(layers),
      sink_tokens_(std::min<std::int64_t>(sink_tokens, max_tokens)),
      ring_tokens_(recent_tokens == 0
                       ? 0
                       : std::min(recent_tokens + max_append_tokens, max_tokens - sink_tokens_)),
      rows_per_sequence_(sink_tokens_ + ring_tokens_),
      max_tokens_(max_tokens),
      slots_(rows_per_sequence_ == 0 ? 0 : max_sequences * max_tokens) {
  const std::int64_t num_rows = max_sequences * rows_per_sequence_;
  for (const LayerShape& layer : layers) {
    k_rows_.emplace_back(num_rows * layer.num_kv_heads * layer.head_dim_k);
    v_rows_.emplace_back(num_rows * layer.num_kv_heads * layer.head_dim_v);
  }
}

void CopyStore::grow(int sequence, std::int64_t old_tokens, std::int64_t num_tokens) {
  if (empty()) return;
  std::int32_t* const slots = slots_.data() + sequence * max_tokens_;
  const std::int64_t base = sequence * rows_per_sequence_;
  for (std::int64_t token = old_tokens; token < num_tokens; ++token) {
    if (token < sink_tokens_) {
      slots[token] = static_cast<std::int32_t>(base + token);
      continue;
    }
    slots[token] = -1;
    if (ring_tokens_ == 0) continue;
    slots[token] =
        static_cast<std::int32_t>(base + sink_tokens_ + (token - sink_tokens_) % ring_tokens_);
    if (token - ring_tokens_ >= sink_tokens_) slots[token - ring_tokens_] = -1;
  }
}

void CopyStore::shrink(int sequence, std::int64_t old_tokens, std::int64_t num_tokens) {
  if (empty()) return;
  std::fill(slots_.data() + sequence * max_tokens_ + num_tokens,
            slots_.data() + sequence * max_tokens_ + old_tokens, -1);
}

void CopyStore::copy_sequence(int from, int to, std::int64_t num_tokens) {
  if (empty()) return;
  const std::int64_t offset = (to - from) * rows_per_sequence_;
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    const std::int32_t slot = slots_[from * max_tokens_ + token];
    slots_[to * max_tokens_ + token] = slot < 0 ? -1 : static_cast<std::int32_t>(slot + offset);
  }
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    for (const auto& [rows, dim] : {std::pair{&k_rows_[layer], layers_[layer].head_dim_k},
                                    {&v_rows_[layer], layers_[layer].head_dim_v}}) {
      const std::int64_t size = rows_per_sequence_ * layers_[layer].num_kv_heads * dim;
      std::copy_n(rows->data() + from * size, size, rows->data() + to * size);
    }
  }
}

void CopyStore::store(int sequence, std::int64_t first_token, const Rows& rows, int num_kv_heads,
                      int head_dim, bf16_t* dst) {
  if (empty()) return;
  const std::int32_t* const slots = slots_.data() + sequence * max_tokens_ + first_token;
  for (std::int64_t token = 0; token < rows.num_tokens; ++token) {
    if (slots[token] < 0) continue;
    for (int head = 0; head < num_kv_heads; ++head) {
      store_exact_row(rows.data + token * rows.token_stride + head * rows.head_stride, head_dim,
                      dst + (std::int64_t{slots[token]} * num_kv_heads + head) * head_dim);
    }
  }
}

void CopyStore::store_keys(int sequence, int layer, std::int64_t first_token, const Rows& rows) {
  store(sequence, first_token, rows, layers_[layer].num_kv_heads, layers_[layer].head_dim_k,
        k_rows_[layer].data());
}
void CopyStore::store_values(int sequence, int layer, std::int64_t first_token, const Rows& rows) {
  store(sequence, first_token, rows, layers_[layer].num_kv_heads, layers_[layer].head_dim_v,
        v_rows_[layer].data());
}

std::uint64_t CopyStore::bytes() const {
  std::uint64_t total = slots_.size() * sizeof(std::int32_t);
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    total += (k_rows_[layer].size() + v_rows_[layer].size()) * sizeof(bf16_t);
  }
  return total;
}

}  // namespace oscar::cache
