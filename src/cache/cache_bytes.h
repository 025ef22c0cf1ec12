// Bytes that the cache of one layer takes in a host whose cells are rows of [stream][cell]: what
// the llama.cpp plugin reserves, and what is said beforehand of a model.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/bf16.h"
#include "format/plane_layout.h"

namespace oscar::cache {

// Cells of a group of layers. A stream starts on a page.
struct CellExtent {
  std::int64_t num_cells = 0;  // of a stream
  std::int64_t num_streams = 1;
  constexpr std::int64_t num_rows() const { return num_cells * num_streams; }
  constexpr std::int64_t num_pages() const {
    return (num_cells + kPageSize - 1) / kPageSize * num_streams;
  }
};

// Codes, scales and zero points of one side.
constexpr std::int64_t plane_bytes(const PlaneLayout& layout, int num_kv_heads,
                                   const CellExtent& extent) {
  return extent.num_pages() * num_kv_heads * layout.plane_bytes();
}

// Exact copies of a layer: a window for each of num_windows sequences, at most a copy a cell.
constexpr std::int64_t num_copies(std::int64_t window_tokens, std::int64_t num_windows,
                                  const CellExtent& extent) {
  return std::min(extent.num_rows(), num_windows * window_tokens);
}

// row_values: num_kv_heads·head_dim of one side.
constexpr std::int64_t copy_bytes(std::int64_t copies, std::int64_t row_values) {
  return copies * row_values * static_cast<std::int64_t>(sizeof(bf16_t));
}

// 36 layers of 8 KV heads of 128 at 32768 tokens, the first 64 and the last 256 exact: 720,027,648
// bytes with each token in one of the two forms, and the codes of the 320, which have both.
static_assert([] {
  const PlaneLayout layout{128, {2, 128, Codebook::kAffine}};
  const CellExtent extent{32768, 1};
  return 36 * 2 *
         (plane_bytes(layout, 8, extent) + copy_bytes(num_copies(320, 1, extent), 8 * 128));
}() == 720027648 + 36 * 2 * 8 * 320 * 36);

}  // namespace oscar::cache
