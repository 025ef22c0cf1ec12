// What the queries of a ubatch may attend, from the mask of FLASH_ATTN_EXT.
#pragma once

#include <cstdint>

namespace oscar::ggml_plugin {

// Tokens are in ubatch order: stream by stream, tokens_per_stream each. mask: F16
// [streams][queries][num_kv]; −inf hides. Without a mask every cell below num_kv is visible.
struct Visibility {
  const std::uint16_t* mask = nullptr;
  std::int64_t query_stride = 0,
               stream_stride = 0;  // in elements; stream_stride 0: one mask for all streams
  std::int64_t num_kv = 0;
  std::int64_t tokens_per_stream = 0;
  std::int64_t first_stream = 0;  // of the cache; the ubatch holds consecutive streams
  std::int64_t kv_size = 0;       // cells a stream

  static constexpr std::uint16_t kHidden = 0xfc00;  // F16 −inf

  std::int64_t stream_of(std::int64_t token) const {
    return first_stream + token / tokens_per_stream;
  }
  // `row` = stream·kv_size + cell.
  bool sees(std::int64_t token, std::int64_t row) const {
    const std::int64_t cell = row % kv_size;
    if (row / kv_size != stream_of(token) || cell >= num_kv) return false;
    if (mask == nullptr) return true;
    return mask[(token / tokens_per_stream) * stream_stride +
                (token % tokens_per_stream) * query_stride + cell] != kHidden;
  }
};

}  // namespace oscar::ggml_plugin
