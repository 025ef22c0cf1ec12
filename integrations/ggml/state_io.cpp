#include "state_io.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/error.h"
#include "state_row.h"
#include "token_bytes.h"

namespace oscar::ggml_plugin {
namespace {

// llama.cpp takes the keys of all layers, then the values; the first visit of a cell settles what
// its layers share.
bool leads(const GroupLayer& layer, Side side) {
  return layer.info->ordinal == 0 && side == Side::kKeys;
}

// The first visit that knows whether the cell has a copy.
bool assigns_copy(const GroupLayer& layer, Side side) {
  const Side first_coded = layer.exact(Side::kKeys) ? Side::kValues : Side::kKeys;
  return layer.info->ordinal == 0 && side == first_coded;
}

std::int64_t row_values(const GroupLayer& layer, Side side) { return layer.info->row_values(side); }

std::uint16_t saturated(std::int32_t value) {
  return static_cast<std::uint16_t>(std::min(value, std::int32_t{0xffff}));
}

StateRowHeader header_for(const CacheGroup& group, const GroupLayer& layer, Side side) {
  StateRowHeader header;
  header.layer = static_cast<std::uint16_t>(layer.info->layer);
  header.flags = side == Side::kValues ? StateRowHeader::kIsValues : std::uint8_t{0};
  header.transforms_hash = layer.transforms_hash;
  header.quant = pack_quant(layer.plane(side).layout.quant);
  header.shape = pack_shape(layer.info->shape.num_kv_heads, layer.head_dim(side));
  header.sink_tokens = saturated(group.window().sink_tokens);
  header.recent_tokens = saturated(group.window().recent_tokens);
  return header;
}

// The codes of a cell, head after head.
template <typename Visit>
void for_each_head(const CacheGroup& group, const GroupLayer& layer, Side side, std::int64_t row,
                   Visit visit) {
  const PlaneView& view = layer.plane(side);
  const std::int64_t slot = group.slot(row);
  for (int head = 0; head < layer.info->shape.num_kv_heads; ++head) {
    visit(view.plane(slot / kPageSize, head), slot % kPageSize, head * token_bytes(view.layout));
  }
}

std::vector<std::uint8_t> codes_of(const CacheGroup& group, const GroupLayer& layer, Side side,
                                   std::int64_t row) {
  const PlaneLayout& layout = layer.plane(side).layout;
  std::vector<std::uint8_t> codes(layer.info->shape.num_kv_heads * token_bytes(layout));
  for_each_head(group, layer, side, row,
                [&](std::uint8_t* plane, std::int64_t token, std::int64_t at) {
                  gather_token(layout, plane, token, codes.data() + at);
                });
  return codes;
}

void set_codes(const CacheGroup& group, const GroupLayer& layer, Side side, std::int64_t row,
               const std::vector<std::uint8_t>& codes) {
  const PlaneLayout& layout = layer.plane(side).layout;
  for_each_head(group, layer, side, row,
                [&](std::uint8_t* plane, std::int64_t token, std::int64_t at) {
                  scatter_token(layout, codes.data() + at, token, plane);
                });
}

// BF16 values of an exact side; head after head is channel order.
std::vector<bf16_t> exact_values(const CacheGroup& group, const GroupLayer& layer, Side side,
                                 std::int64_t row) {
  const std::vector<std::uint8_t> codes = codes_of(group, layer, side, row);
  std::vector<bf16_t> values(codes.size() / sizeof(bf16_t));
  std::memcpy(values.data(), codes.data(), codes.size());
  return values;
}

void make_unusable(CacheGroup* group, std::int64_t row, const std::string& reason) {
  if (group->num_unusable == 0) group->unusable_reason() = reason;
  if (!group->unusable()[row]) ++group->num_unusable;
  group->unusable()[row] = true;
}

std::string restore_exact(CacheGroup* group, const GroupLayer& layer, Side side, std::int64_t row,
                          std::span<const std::uint8_t> in) {
  std::vector<std::uint8_t> codes(in.size());
  for (std::size_t at = 0; at < in.size(); at += sizeof(bf16_t)) {
    ggml_fp16_t half;
    std::memcpy(&half, in.data() + at, sizeof half);
    const bf16_t value = bf16_from_float(ggml_fp16_to_fp32(half));
    if ((value & 0x7f80u) == 0x7f80u) {
      return "it holds NaN or Inf, as coded rows do, and this cache keeps exact " +
             std::string(side_name(side));
    }
    std::memcpy(codes.data() + at, &value, sizeof value);
  }
  set_codes(*group, layer, side, row, codes);
  if (group->positions()[row] < 0) group->positions()[row] = 0;
  return "";
}

std::string restore_coded(CacheGroup* group, GroupLayer& layer, Side side, std::int64_t row,
                          std::span<const std::uint8_t> in) {
  StateRowHeader header;
  std::vector<std::uint8_t> codes(layer.info->shape.num_kv_heads *
                                  token_bytes(layer.plane(side).layout));
  std::vector<float> copy(row_values(layer, side));
  std::string reason;
  switch (read_state_row(in, header_for(*group, layer, side), &header, codes, copy, &reason)) {
    case StateRowKind::kUnwritten: return "";
    case StateRowKind::kRefused: return reason;
    case StateRowKind::kCoded: break;
  }
  set_codes(*group, layer, side, row, codes);
  group->reach_position(header.position);
  group->positions()[row] = header.position;
  if ((header.flags & StateRowHeader::kHasCopy) == 0) return "";
  if (assigns_copy(layer, side)) group->copies().assign(row);
  const std::int32_t slot = group->copies().slot(row);
  if (slot < 0) return "";
  std::transform(copy.begin(), copy.end(), group->copy(layer, side, slot), bf16_from_float);
  if (side == Side::kValues && layer.exact(Side::kKeys)) {
    std::ranges::copy(exact_values(*group, layer, Side::kKeys, row),
                      group->copy(layer, Side::kKeys, slot));
  }
  return "";
}

}  // namespace

void save_rows(CacheGroup* group, GroupLayer& layer, Side side, RowRange rows,
               std::span<std::uint8_t> out) {
  group->settle();
  const std::size_t row_bytes = row_values(layer, side) * sizeof(ggml_fp16_t);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int64_t row = rows.first + i;
    const std::span<std::uint8_t> bytes = out.subspan(i * row_bytes, row_bytes);
    if (group->positions()[row] < 0) {
      std::fill(bytes.begin(), bytes.end(), std::uint8_t{0});
      continue;
    }
    if (group->unusable()[row]) throw Error(ErrorCode::kMismatch, group->unusable_reason());
    if (layer.exact(side)) {
      std::size_t at = 0;
      for (const bf16_t value : exact_values(*group, layer, side, row)) {
        const ggml_fp16_t half = ggml_fp32_to_fp16(bf16_to_float(value));
        std::memcpy(bytes.data() + at, &half, sizeof half);
        at += sizeof half;
      }
      continue;
    }
    StateRowHeader header = header_for(*group, layer, side);
    header.position = group->positions()[row];
    std::vector<float> copy;
    if (const std::int32_t slot = group->copies().slot(row); slot >= 0) {
      const bf16_t* values = group->copy(layer, side, slot);
      copy.resize(row_values(layer, side));
      std::transform(values, values + copy.size(), copy.begin(), bf16_to_float);
    }
    write_state_row(header, codes_of(*group, layer, side, row), copy, bytes);
  }
}

std::string restore_rows(CacheGroup* group, GroupLayer& layer, Side side, RowRange rows,
                         std::span<const std::uint8_t> in) {
  group->settle();
  const std::size_t row_bytes = row_values(layer, side) * sizeof(ggml_fp16_t);
  std::string first_reason;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int64_t row = rows.first + i;
    if (leads(layer, side)) {
      group->positions()[row] = -1;
      group->copies().drop(row);
      if (group->unusable()[row]) --group->num_unusable;
      group->unusable()[row] = false;
    }
    const std::span<const std::uint8_t> bytes = in.subspan(i * row_bytes, row_bytes);
    const std::string reason = layer.exact(side) ? restore_exact(group, layer, side, row, bytes)
                                                 : restore_coded(group, layer, side, row, bytes);
    if (reason.empty()) continue;
    const std::string line = "saved sequence refused at layer " +
                             std::to_string(layer.info->layer) + ", " + side_name(side) + ": " +
                             reason;
    make_unusable(group, row, line);
    if (first_reason.empty()) first_reason = line;
  }
  return first_reason;
}

void read_values(CacheGroup* group, GroupLayer& layer, Side side, RowRange rows,
                 std::span<std::uint16_t> out) {
  const std::int64_t values = row_values(layer, side);
  std::vector<float> row_floats(values);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int64_t row = rows.first + i;
    const std::int32_t position = group->positions()[row];
    const std::int32_t slot = group->copies().slot(row);
    if (position < 0) {
      std::fill(row_floats.begin(), row_floats.end(), 0.0f);
    } else if (slot >= 0) {
      const bf16_t* copy = group->copy(layer, side, slot);
      std::transform(copy, copy + values, row_floats.begin(), bf16_to_float);
    } else if (side == Side::kKeys) {
      layer.codec->decode_key(group->slot(row), position, layer.plane(side), row_floats.data());
    } else {
      layer.codec->decode_value(group->slot(row), layer.plane(side), row_floats.data());
    }
    ggml_fp32_to_fp16_row(row_floats.data(), out.data() + i * values, values);
  }
}

void copy_rows(CacheGroup* group, GroupLayer& layer, Side side, RowRange from, RowRange to) {
  group->settle();
  CopyTable& copies = group->copies();
  for (std::int64_t i = 0; leads(layer, side) && i < from.count; ++i) {
    const std::int64_t source = from.first + i, target = to.first + i;
    group->positions()[target] = group->positions()[source];
    group->num_unusable += int{group->unusable()[source]} - int{group->unusable()[target]};
    group->unusable()[target] = group->unusable()[source];
    copies.drop(target);
    if (copies.slot(source) >= 0) copies.assign(target);
  }
  for (std::int64_t i = 0; i < from.count; ++i) {
    const std::int64_t source = from.first + i, target = to.first + i;
    // The assignment may have cost another cell its slot.
    if (copies.slot(source) < 0) copies.drop(target);
    if (group->positions()[source] < 0) continue;
    set_codes(*group, layer, side, target, codes_of(*group, layer, side, source));
    if (copies.slot(target) < 0) continue;
    std::copy_n(group->copy(layer, side, copies.slot(source)), row_values(layer, side),
                group->copy(layer, side, copies.slot(target)));
  }
}

}  // namespace oscar::ggml_plugin
