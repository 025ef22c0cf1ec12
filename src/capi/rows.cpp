#include <algorithm>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "cache/token_bytes.h"
#include "capi/handles.h"
#include "capi/status.h"
#include "methods/definition.h"

namespace oscar::capi {
namespace {

// One page of one side, for rows on their way between floats and bytes.
class Page {
 public:
  Page(const PlaneLayout& layout, int num_kv_heads)
      : bytes_(num_kv_heads * layout.plane_bytes()),
        view_{bytes_.data(), num_kv_heads * layout.plane_bytes(), layout.plane_bytes(), layout},
        num_kv_heads_(num_kv_heads),
        row_bytes_(cache::token_row_bytes(layout)) {
    for (std::int64_t i = 0; i < kPageSize; ++i) slots_[i] = i;
  }
  const PlaneView& view() const { return view_; }
  const std::int64_t* slots() const { return slots_; }
  std::int64_t token_bytes() const { return num_kv_heads_ * row_bytes_; }

  void read(std::int64_t token, std::uint8_t* bytes) const {
    for (int head = 0; head < num_kv_heads_; ++head) {
      cache::read_token_bytes(view_.layout, view_.plane(0, head), token, bytes + head * row_bytes_);
    }
  }
  void write(const std::uint8_t* bytes, std::int64_t token) {
    for (int head = 0; head < num_kv_heads_; ++head) {
      cache::write_token_bytes(view_.layout, bytes + head * row_bytes_, token,
                               view_.plane(0, head));
    }
  }

 private:
  AlignedBuffer<std::uint8_t> bytes_;
  PlaneView view_;
  int num_kv_heads_;
  std::int64_t row_bytes_;
  std::int64_t slots_[kPageSize];
};

void require_tokens(std::int64_t num_tokens) {
  if (num_tokens >= 0) return;
  throw Error(ErrorCode::kInvalidArgument,
              "num_tokens is " + std::to_string(num_tokens) + "; it must be at least 0");
}

void require_positions(const oscar_codec& codec, const std::int32_t* positions,
                       std::int64_t num_tokens) {
  if (num_tokens > 0) require_pointer(positions, "positions");
  for (std::int64_t i = 0; i < num_tokens; ++i) {
    if (positions[i] >= 0 && positions[i] <= codec.max_position) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "positions[" + std::to_string(i) + "] is " + std::to_string(positions[i]) +
                    "; it must be 0 to " + std::to_string(codec.max_position));
  }
}

// What the four functions on rows begin with; run(codec) only where there are rows.
template <typename Run>
oscar_status on_rows(const oscar_codec* codec, std::int64_t num_tokens, const float* rows,
                     const char* rows_name, const std::uint8_t* bytes, const Run& run) {
  return guarded([&] {
    require_pointer(codec, "codec");
    require_tokens(num_tokens);
    if (num_tokens == 0) return OSCAR_OK;
    require_pointer(rows, rows_name);
    require_pointer(bytes, "bytes");
    return run(codec->codec);
  });
}

std::int64_t row_floats(const cache::LayerCodec& codec, const PlaneLayout& layout) {
  return std::int64_t{codec.num_kv_heads()} * layout.head_dim;
}

// Encodes num_tokens rows page by page; encode(rows, first token, page) does one.
template <typename Encode>
oscar_status encode_rows(const cache::LayerCodec& codec, const PlaneLayout& layout,
                         const float* rows, std::int64_t num_tokens, std::uint8_t* bytes,
                         const Encode& encode) {
  Page page(layout, codec.num_kv_heads());
  const std::int64_t width = row_floats(codec, layout);
  bool finite = true;
  for (std::int64_t first = 0; first < num_tokens; first += kPageSize) {
    const std::int64_t count = std::min<std::int64_t>(kPageSize, num_tokens - first);
    finite &= encode(cache::Rows{rows + first * width, count, width, layout.head_dim}, first, page);
    for (std::int64_t i = 0; i < count; ++i) page.read(i, bytes + (first + i) * page.token_bytes());
  }
  if (finite) return OSCAR_OK;
  set_last_error("a row held NaN or Inf and was stored as zeros");
  return OSCAR_NOT_FINITE;
}

// Decodes num_tokens rows one by one; decode(token, page, row) decodes slot 0 of the page.
template <typename Decode>
oscar_status decode_rows(const cache::LayerCodec& codec, const PlaneLayout& layout,
                         const std::uint8_t* bytes, std::int64_t num_tokens, float* rows,
                         const Decode& decode) {
  Page page(layout, codec.num_kv_heads());
  const std::int64_t width = row_floats(codec, layout);
  for (std::int64_t i = 0; i < num_tokens; ++i) {
    page.write(bytes + i * page.token_bytes(), 0);
    decode(i, page.view(), rows + i * width);
  }
  return OSCAR_OK;
}

}  // namespace
}  // namespace oscar::capi

using oscar::cache::LayerCodec;
using oscar::capi::guarded;
using oscar::capi::on_rows;
using oscar::capi::Page;
using oscar::capi::require_pointer;

extern "C" {

oscar_status oscar_codec_create(const oscar_method* method, int32_t layer, int32_t max_position,
                                oscar_codec** out) {
  return guarded([&] {
    require_pointer(method, "method");
    require_pointer(out, "out");
    const oscar::Artefact& artefact = method->artefact;
    if (layer < 0 || layer >= std::ssize(artefact.layers)) {
      throw oscar::Error(oscar::ErrorCode::kInvalidArgument,
                         "layer is " + std::to_string(layer) + "; it must be 0 to " +
                             std::to_string(std::ssize(artefact.layers) - 1));
    }
    if (max_position < 0) {
      throw oscar::Error(
          oscar::ErrorCode::kInvalidArgument,
          "max_position is " + std::to_string(max_position) + "; it must be at least 0");
    }
    const oscar::ArtefactLayer& shape = artefact.layers[layer];
    std::shared_ptr<const oscar::RopeTable> rope;
    if (shape.rope >= 0)
      rope = std::make_shared<oscar::RopeTable>(artefact.ropes.at(shape.rope), max_position);
    if (!oscar::methods::definition(artefact.method).packed()) {
      throw oscar::Error(oscar::ErrorCode::kUnsupported,
                         std::string("method '") + oscar::method_name(artefact.method) +
                             "' has no rows of single tokens and no pages: its codes are in a "
                             "layout of its own; use oscar_cache");
    }
    *out = new oscar_codec{
        oscar::cache::LayerCodec(artefact, shape, rope, oscar::kernels::selected_kernel_set()),
        max_position, method->force_float};
    return OSCAR_OK;
  });
}

void oscar_codec_free(oscar_codec* codec) { delete codec; }

size_t oscar_codec_key_bytes(const oscar_codec* codec) {
  if (codec == nullptr) return 0;
  return codec->codec.num_kv_heads() * oscar::cache::token_row_bytes(codec->codec.k_layout());
}
size_t oscar_codec_value_bytes(const oscar_codec* codec) {
  if (codec == nullptr) return 0;
  return codec->codec.num_kv_heads() * oscar::cache::token_row_bytes(codec->codec.v_layout());
}

oscar_status oscar_encode_keys(const oscar_codec* codec, const float* keys,
                               const int32_t* positions, int64_t num_tokens, uint8_t* bytes) {
  return on_rows(codec, num_tokens, keys, "keys", bytes, [&](const LayerCodec& layer) {
    oscar::capi::require_positions(*codec, positions, num_tokens);
    return oscar::capi::encode_rows(
        layer, layer.k_layout(), keys, num_tokens, bytes,
        [&](const oscar::cache::Rows& rows, std::int64_t first, const Page& page) {
          return layer.encode_keys(rows, positions + first, page.slots(), page.view(), 1);
        });
  });
}

oscar_status oscar_encode_values(const oscar_codec* codec, const float* values, int64_t num_tokens,
                                 uint8_t* bytes) {
  return on_rows(codec, num_tokens, values, "values", bytes, [&](const LayerCodec& layer) {
    return oscar::capi::encode_rows(
        layer, layer.v_layout(), values, num_tokens, bytes,
        [&](const oscar::cache::Rows& rows, std::int64_t, const Page& page) {
          return layer.encode_values(rows, page.slots(), page.view(), 1);
        });
  });
}

oscar_status oscar_decode_keys(const oscar_codec* codec, const uint8_t* bytes,
                               const int32_t* positions, int64_t num_tokens, float* keys) {
  return on_rows(codec, num_tokens, keys, "keys", bytes, [&](const LayerCodec& layer) {
    oscar::capi::require_positions(*codec, positions, num_tokens);
    return oscar::capi::decode_rows(
        layer, layer.k_layout(), bytes, num_tokens, keys,
        [&](std::int64_t token, const oscar::PlaneView& page, float* row) {
          layer.decode_key(0, positions[token], page, row);
        });
  });
}

oscar_status oscar_decode_values(const oscar_codec* codec, const uint8_t* bytes, int64_t num_tokens,
                                 float* values) {
  return on_rows(codec, num_tokens, values, "values", bytes, [&](const LayerCodec& layer) {
    return oscar::capi::decode_rows(layer, layer.v_layout(), bytes, num_tokens, values,
                                    [&](std::int64_t, const oscar::PlaneView& page, float* row) {
                                      layer.decode_value(0, page, row);
                                    });
  });
}

}  // extern "C"
