// How llama.cpp names and addresses its KV cache.
//
// A cache tensor ("root") is [n_embd][kv_size][num_streams] of what llama.cpp believes to be F16,
// n_embd = num_kv_heads·head_dim. Everything else that touches the cache is a view of a root; its
// byte offset speaks of those F16 rows, never of our memory.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace oscar::ggml_plugin {

enum class Side : std::uint8_t { kKeys = 0, kValues = 1 };
inline const char* side_name(Side side) { return side == Side::kKeys ? "keys" : "values"; }

// "cache_k_l7": keys of layer 7. `tag` tells caches of one model apart ("cache_" TAG "k_l7").
struct CacheName {
  std::string tag;
  Side side;
  int layer;
};
std::optional<CacheName> parse_cache_name(std::string_view name);

// Recurrent state ("cache_r_l0", "cache_s_l0"), which this device does not hold.
bool is_recurrent_name(std::string_view name);

inline const ggml_tensor* root_of(const ggml_tensor* tensor) {
  return tensor->view_src != nullptr ? tensor->view_src : tensor;
}

// Rows of a root: row = stream·kv_size + cell.
struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// The rows that bytes [offset, offset + size) of `tensor`, a root or a view of one, stand for;
// nothing when they are no whole rows.
std::optional<RowRange> rows_of(const ggml_tensor* tensor, std::size_t offset, std::size_t size);

// The rows that they touch, if only in part, of those that the cache has.
RowRange rows_touched(const ggml_tensor* tensor, std::size_t offset, std::size_t size);

// Row index at i of a SET_ROWS index tensor, I64 or I32.
std::int64_t row_index(const ggml_tensor* indices, std::int64_t i);

}  // namespace oscar::ggml_plugin
