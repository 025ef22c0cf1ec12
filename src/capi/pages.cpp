#include <algorithm>
#include <string>

#include "attention/attention.h"
#include "base/aligned_buffer.h"
#include "capi/handles.h"
#include "capi/status.h"

namespace oscar::capi {
namespace {

std::int64_t head_bytes(const cache::LayerCodec& codec) {
  return codec.k_layout().plane_bytes() + codec.v_layout().plane_bytes();
}
std::int64_t page_bytes(const cache::LayerCodec& codec) {
  return codec.num_kv_heads() * head_bytes(codec);
}

// The views are written through by encode only, whose pages are not const.
PlaneView key_view(const cache::LayerCodec& codec, const std::uint8_t* pages) {
  return {const_cast<std::uint8_t*>(pages), page_bytes(codec), head_bytes(codec), codec.k_layout()};
}
PlaneView value_view(const cache::LayerCodec& codec, const std::uint8_t* pages) {
  return {const_cast<std::uint8_t*>(pages) + codec.k_layout().plane_bytes(), page_bytes(codec),
          head_bytes(codec), codec.v_layout()};
}

oscar_plane plane_of(const PlaneLayout& layout) {
  const bool coded = layout.quant.bits != 16;
  return {layout.head_dim,
          layout.quant.bits,
          coded ? layout.quant.group_size : 0,
          coded && layout.quant.codebook == Codebook::kAffine,
          layout.code_row_bytes(),
          layout.scales_offset(),
          layout.zeros_offset(),
          layout.plane_bytes()};
}

oscar_codec_side side_of(const QuantSpec& quant) {
  oscar_codec_side side = {};
  side.bits = quant.bits;
  if (quant.bits == 16) return side;
  side.group_size = quant.group_size;
  side.has_zero_points = quant.codebook == Codebook::kAffine;
  side.scale_fit = static_cast<std::int32_t>(quant.scale_fit);
  side.is_trellis = quant.codebook == Codebook::kTrellis;
  return side;
}

oscar_codec_side key_side(const cache::LayerCodec& codec) {
  oscar_codec_side side = side_of(codec.k_layout().quant);
  if (codec.keys_are_exact()) return side;
  side.transform = codec.key_transform();
  side.attend_transform = codec.query_transform(0);
  side.mean = codec.key_mean(0);
  side.clip_ratio = codec.key_clip();
  if (side.mean != nullptr && codec.rope() != nullptr) {
    const RopeSpec& rope = codec.rope()->spec();
    side.num_pairs = rope.num_pairs();
    side.pairing = static_cast<std::int32_t>(rope.pairing);
    side.inv_freq = rope.inv_freq.data();
    side.magnitude = rope.magnitude;
  }
  return side;
}

oscar_codec_side value_side(const cache::LayerCodec& codec) {
  oscar_codec_side side = side_of(codec.v_layout().quant);
  if (codec.values_are_exact()) return side;
  side.transform = codec.value_transform();
  side.attend_transform = codec.output_transform(0);
  side.mean = codec.value_mean(0);
  side.clip_ratio = codec.value_clip();
  return side;
}

[[noreturn]] void refuse(const std::string& name, std::int64_t value, const std::string& legal) {
  throw Error(ErrorCode::kInvalidArgument,
              name + " is " + std::to_string(value) + "; it must be " + legal);
}

void require_least(const char* name, std::int64_t value, std::int64_t least) {
  if (value < least) refuse(name, value, "at least " + std::to_string(least));
}

// Every one of values[0 .. count) in [least, most].
template <typename Integer>
void require_all(const char* name, const Integer* values, std::int64_t count, std::int64_t least,
                 std::int64_t most) {
  if (count > 0) require_pointer(values, name);
  for (std::int64_t i = 0; i < count; ++i) {
    if (values[i] >= least && values[i] <= most) continue;
    refuse(std::string(name) + "[" + std::to_string(i) + "]", values[i],
           std::to_string(least) + " to " + std::to_string(most));
  }
}

oscar_status encode(const oscar_codec& handle, const float* keys, const float* values,
                    const std::int32_t* positions, const std::int64_t* slots,
                    std::int64_t num_tokens, std::int32_t num_threads, std::uint8_t* pages,
                    std::int64_t num_pages) {
  require_least("num_tokens", num_tokens, 0);
  require_least("num_threads", num_threads, 1);
  require_least("num_pages", num_pages, 0);
  if (num_tokens == 0) return OSCAR_OK;
  require_pointer(keys, "keys");
  require_pointer(values, "values");
  require_pointer(pages, "pages");
  require_all("positions", positions, num_tokens, 0, handle.max_position);
  require_all("slots", slots, num_tokens, -1, num_pages * kPageSize - 1);
  const cache::LayerCodec& codec = handle.codec;
  const auto rows = [&](const float* data, int head_dim) {
    return cache::Rows{data, num_tokens, std::int64_t{codec.num_kv_heads()} * head_dim, head_dim};
  };
  const bool keys_finite = codec.encode_keys(rows(keys, codec.k_layout().head_dim), positions,
                                             slots, key_view(codec, pages), num_threads);
  const bool values_finite = codec.encode_values(rows(values, codec.v_layout().head_dim), slots,
                                                 value_view(codec, pages), num_threads);
  if (keys_finite && values_finite) return OSCAR_OK;
  set_last_error("a row held NaN or Inf and was stored as zeros");
  return OSCAR_NOT_FINITE;
}

void check(const oscar_codec& handle, const oscar_page_queries& given) {
  if (given.struct_bytes != sizeof given) {
    refuse("queries.struct_bytes", static_cast<std::int64_t>(given.struct_bytes),
           "this library's, " + std::to_string(sizeof given));
  }
  require_least("queries.num_queries", given.num_queries, 0);
  require_least("queries.num_tokens", given.num_tokens, 0);
  require_least("queries.num_pages", given.num_pages, 0);
  require_least("queries.num_copies", given.num_copies, 0);
  require_least("queries.sink_tokens", given.sink_tokens, 0);
  require_least("queries.recent_tokens", given.recent_tokens, 0);
  require_least("queries.num_threads", given.num_threads, 0);
  if (given.num_tokens > std::int64_t{handle.max_position} + 1) {
    refuse("queries.num_tokens", given.num_tokens,
           "at most " + std::to_string(std::int64_t{handle.max_position} + 1));
  }
  if (given.num_queries > 0) {
    require_pointer(given.q, "queries.q");
    require_pointer(given.out, "queries.out");
  }
  require_all("queries.query_positions", given.query_positions, given.num_queries, 0,
              handle.max_position);
  const std::int64_t used_pages = (given.num_tokens + kPageSize - 1) / kPageSize;
  if (used_pages > 0) require_pointer(given.pages, "queries.pages");
  require_all("queries.block_table", given.block_table, used_pages, 0, given.num_pages - 1);
  if (given.copy_rows == nullptr) return;
  require_all("queries.copy_rows", given.copy_rows, given.num_tokens, -1, given.num_copies - 1);
  if (given.num_copies > 0) {
    require_pointer(given.k_copies, "queries.k_copies");
    require_pointer(given.v_copies, "queries.v_copies");
  }
}

oscar_status attend(const oscar_codec& handle, const oscar_page_queries& given) {
  check(handle, given);
  const cache::LayerCodec& codec = handle.codec;
  const int dk = codec.k_layout().head_dim, dv = codec.v_layout().head_dim;
  const attention::Plan plan = attention::plan(
      {given.num_queries, given.num_tokens, given.num_q_heads, codec.num_kv_heads(), dk, dv},
      std::max(1, given.num_threads));
  attention::Params params;
  params.q = given.q;
  params.q_query_stride = std::int64_t{given.num_q_heads} * dk;
  params.q_head_stride = dk;
  params.out = given.out;
  params.out_query_stride = std::int64_t{given.num_q_heads} * dv;
  params.out_head_stride = dv;
  params.lse = given.lse;
  params.query_positions = given.query_positions;
  params.kv.k = key_view(codec, given.pages);
  params.kv.v = value_view(codec, given.pages);
  params.kv.block_table = given.block_table;
  params.kv.copy_slots = given.copy_rows;
  params.kv.k_copies = given.k_copies;
  params.kv.v_copies = given.v_copies;
  params.codec = &codec;
  params.scale = given.scale;
  params.soft_cap = given.soft_cap;
  params.causal = true;
  params.sliding_window = given.sliding_window;
  params.sinks = given.sinks;
  params.sink_tokens = given.sink_tokens;
  params.recent_tokens = given.recent_tokens;
  params.float_path = handle.force_float;
  AlignedBuffer<std::uint8_t> workspace(plan.workspace_bytes);
  attention::run(plan, params, workspace.data());
  return OSCAR_OK;
}

}  // namespace
}  // namespace oscar::capi

using oscar::capi::guarded;
using oscar::capi::require_pointer;

extern "C" {

oscar_status oscar_codec_key_plane(const oscar_codec* codec, oscar_plane* out) {
  return guarded([&] {
    require_pointer(codec, "codec");
    require_pointer(out, "out");
    *out = oscar::capi::plane_of(codec->codec.k_layout());
    return OSCAR_OK;
  });
}

oscar_status oscar_codec_value_plane(const oscar_codec* codec, oscar_plane* out) {
  return guarded([&] {
    require_pointer(codec, "codec");
    require_pointer(out, "out");
    *out = oscar::capi::plane_of(codec->codec.v_layout());
    return OSCAR_OK;
  });
}

oscar_status oscar_codec_key_side(const oscar_codec* codec, oscar_codec_side* out) {
  return guarded([&] {
    require_pointer(codec, "codec");
    require_pointer(out, "out");
    *out = oscar::capi::key_side(codec->codec);
    return OSCAR_OK;
  });
}

oscar_status oscar_codec_value_side(const oscar_codec* codec, oscar_codec_side* out) {
  return guarded([&] {
    require_pointer(codec, "codec");
    require_pointer(out, "out");
    *out = oscar::capi::value_side(codec->codec);
    return OSCAR_OK;
  });
}

size_t oscar_codec_page_bytes(const oscar_codec* codec) {
  return codec == nullptr ? 0 : static_cast<size_t>(oscar::capi::page_bytes(codec->codec));
}

oscar_status oscar_encode_pages(const oscar_codec* codec, const float* keys, const float* values,
                                const int32_t* positions, const int64_t* slots, int64_t num_tokens,
                                int32_t num_threads, uint8_t* pages, int64_t num_pages) {
  return guarded([&] {
    require_pointer(codec, "codec");
    return oscar::capi::encode(*codec, keys, values, positions, slots, num_tokens, num_threads,
                               pages, num_pages);
  });
}

oscar_status oscar_attend_pages(const oscar_codec* codec, const oscar_page_queries* queries) {
  return guarded([&] {
    require_pointer(codec, "codec");
    require_pointer(queries, "queries");
    return oscar::capi::attend(*codec, *queries);
  });
}

}  // extern "C"
