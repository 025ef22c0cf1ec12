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

std::size_t code_bytes(const GroupLayer& layer, Side side) {
  return layer.info->shape.num_kv_heads * token_bytes(layer.plane(side).layout);
}

void get_codes(const CacheGroup& group, const GroupLayer& layer, Side side, std::int64_t row,
               std::span<std::uint8_t> codes) {
  const PlaneLayout& layout = layer.plane(side).layout;
  for_each_head(group, layer, side, row,
                [&](std::uint8_t* plane, std::int64_t token, std::int64_t at) {
                  gather_token(layout, plane, token, codes.data() + at);
                });
}

void set_codes(const CacheGroup& group, const GroupLayer& layer, Side side, std::int64_t row,
               std::span<const std::uint8_t> codes) {
  const PlaneLayout& layout = layer.plane(side).layout;
  for_each_head(group, layer, side, row,
                [&](std::uint8_t* plane, std::int64_t token, std::int64_t at) {
                  scatter_token(layout, codes.data() + at, token, plane);
                });
}

// The planes of an exact side hold BF16 values; head after head is channel order.
std::span<std::uint8_t> bytes_of(std::span<bf16_t> values) {
  return {reinterpret_cast<std::uint8_t*>(values.data()), values.size_bytes()};
}

// Room for one row, used by all rows of a call.
struct RowBuffers {
  std::vector<std::uint8_t> codes;
  std::vector<float> copy;
  std::vector<bf16_t> exact;
};

void refuse_cell(CacheGroup* group, std::int64_t row, const std::string& reason) {
  if (group->num_cells(CellState::kRefused) == 0) group->refused_reason = reason;
  group->set_cell_state(row, CellState::kRefused);
  group->copies().drop(row);
}

// What the cells held before ends with the first row of a restore, whatever becomes of the others.
void begin_restore(CacheGroup* group, RowRange rows) {
  const auto num_layers = static_cast<std::int32_t>(group->layers().size());
  for (std::int64_t row = rows.first; row < rows.first + rows.count; ++row) {
    group->positions()[row] = -1;
    group->copies().drop(row);
    group->set_cell_state(row, CellState::kPartial);
    group->rows_to_restore()[row] = 2 * num_layers;
  }
  if (group->num_cells(CellState::kRefused) == 0) group->said_refused_state = false;
}

void end_row(CacheGroup* group, std::int64_t row) {
  std::int32_t& left = group->rows_to_restore()[row];
  if (left > 0 && --left > 0) return;
  if (group->cell_state(row) == CellState::kPartial) group->set_cell_state(row, CellState::kGood);
}

std::string restore_exact(CacheGroup* group, const GroupLayer& layer, Side side, std::int64_t row,
                          std::span<const std::uint8_t> in, RowBuffers* buffers) {
  std::vector<bf16_t>& values = buffers->exact;
  values.resize(in.size() / sizeof(bf16_t));
  for (std::size_t i = 0; i < values.size(); ++i) {
    ggml_fp16_t half;
    std::memcpy(&half, in.data() + i * sizeof half, sizeof half);
    values[i] = bf16_from_float(ggml_fp16_to_fp32(half));
    if ((values[i] & 0x7f80u) == 0x7f80u) {
      return "it holds NaN or Inf, as coded rows do, and this cache keeps exact " +
             std::string(side_name(side));
    }
  }
  set_codes(*group, layer, side, row, bytes_of(values));
  // Where the other side is coded its rows name the position, and have assigned the copy if they
  // come first.
  if (layer.exact(Side::kKeys) && layer.exact(Side::kValues)) group->positions()[row] = 0;
  const std::int32_t slot = group->copies().slot(row);
  if (slot >= 0) std::ranges::copy(values, group->copy(layer, side, slot));
  return "";
}

std::string restore_coded(CacheGroup* group, GroupLayer& layer, Side side, std::int64_t row,
                          std::span<const std::uint8_t> in, const StateRowHeader& expected,
                          RowBuffers* buffers) {
  StateRowHeader header;
  std::vector<std::uint8_t>& codes = buffers->codes;
  std::vector<float>& copy = buffers->copy;
  codes.resize(code_bytes(layer, side));
  copy.resize(row_values(layer, side));
  std::string reason;
  switch (read_state_row(in, expected, &header, codes, copy, &reason)) {
    case StateRowKind::kUnwritten:
      return "it holds zeros: the cell was never written, or the state has a hole";
    case StateRowKind::kRefused: return reason;
    case StateRowKind::kCoded: break;
  }
  std::int32_t& position = group->positions()[row];
  if (header.position < 0 || header.position > kMaxPosition) {
    return "its position is " + std::to_string(header.position) + "; legal are 0 to " +
           std::to_string(kMaxPosition);
  }
  if (position >= 0 && position != header.position) {
    return "its position is " + std::to_string(header.position) + ", of the cell's other rows " +
           std::to_string(position);
  }
  set_codes(*group, layer, side, row, codes);
  group->reach_position(header.position);
  position = header.position;
  // A copy is one of every layer and side, or none: a row may lack the room for its part.
  if ((header.flags & StateRowHeader::kHasCopy) == 0) {
    group->copies().drop(row);
    return "";
  }
  if (assigns_copy(layer, side)) group->copies().assign(row);
  const std::int32_t slot = group->copies().slot(row);
  if (slot < 0) return "";
  std::transform(copy.begin(), copy.end(), group->copy(layer, side, slot), bf16_from_float);
  if (side == Side::kValues && layer.exact(Side::kKeys)) {
    bf16_t* const keys = group->copy(layer, Side::kKeys, slot);
    get_codes(*group, layer, Side::kKeys, row,
              bytes_of({keys, static_cast<std::size_t>(row_values(layer, Side::kKeys))}));
  }
  return "";
}

}  // namespace

void save_rows(CacheGroup* group, GroupLayer& layer, Side side, RowRange rows,
               std::span<std::uint8_t> out) {
  group->settle();
  group->require_packed("cannot be saved");
  const std::size_t row_bytes = row_values(layer, side) * sizeof(ggml_fp16_t);
  StateRowHeader header = header_for(*group, layer, side);
  RowBuffers buffers;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int64_t row = rows.first + i;
    const std::span<std::uint8_t> bytes = out.subspan(i * row_bytes, row_bytes);
    if (group->positions()[row] < 0) {
      std::fill(bytes.begin(), bytes.end(), std::uint8_t{0});
      continue;
    }
    if (group->cell_state(row) != CellState::kGood)
      throw Error(ErrorCode::kMismatch, group->unusable_reason(row));
    if (layer.exact(side)) {
      buffers.exact.resize(row_values(layer, side));
      get_codes(*group, layer, side, row, bytes_of(buffers.exact));
      std::size_t at = 0;
      for (const bf16_t value : buffers.exact) {
        const ggml_fp16_t half = ggml_fp32_to_fp16(bf16_to_float(value));
        std::memcpy(bytes.data() + at, &half, sizeof half);
        at += sizeof half;
      }
      continue;
    }
    header.position = group->positions()[row];
    buffers.codes.resize(code_bytes(layer, side));
    get_codes(*group, layer, side, row, buffers.codes);
    std::vector<float>& copy = buffers.copy;
    copy.clear();
    if (const std::int32_t slot = group->copies().slot(row); slot >= 0) {
      const bf16_t* values = group->copy(layer, side, slot);
      copy.resize(row_values(layer, side));
      std::transform(values, values + copy.size(), copy.begin(), bf16_to_float);
    }
    write_state_row(header, buffers.codes, copy, bytes);
  }
}

namespace {

// A restore cannot fail in llama.cpp's interface: the cells are marked instead.
std::string refuse_unpacked(CacheGroup* group, RowRange rows) {
  try {
    group->require_packed("cannot be restored");
  } catch (const Error& error) {
    for (std::int64_t row = rows.first; row < rows.first + rows.count; ++row)
      refuse_cell(group, row, error.what());
    return error.what();
  }
  return "";
}

}  // namespace

std::string restore_rows(CacheGroup* group, GroupLayer& layer, Side side, RowRange rows,
                         std::span<const std::uint8_t> in) {
  group->settle();
  const std::size_t row_bytes = row_values(layer, side) * sizeof(ggml_fp16_t);
  if (leads(layer, side)) begin_restore(group, rows);
  if (!group->is_packed()) return refuse_unpacked(group, rows);
  const StateRowHeader expected = header_for(*group, layer, side);
  RowBuffers buffers;
  std::string first_reason;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int64_t row = rows.first + i;
    const std::span<const std::uint8_t> bytes = in.subspan(i * row_bytes, row_bytes);
    const std::string reason =
        layer.exact(side) ? restore_exact(group, layer, side, row, bytes, &buffers)
                          : restore_coded(group, layer, side, row, bytes, expected, &buffers);
    if (reason.empty()) {
      end_row(group, row);
      continue;
    }
    const std::string line = "saved sequence refused at layer " +
                             std::to_string(layer.info->layer) + ", " + side_name(side) + ": " +
                             reason;
    refuse_cell(group, row, line);
    if (first_reason.empty()) first_reason = line;
  }
  return first_reason;
}

void refuse_rows(CacheGroup* group, RowRange rows, const std::string& reason) {
  group->settle();
  for (std::int64_t row = rows.first; row < rows.first + rows.count; ++row)
    refuse_cell(group, row, reason);
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
    } else if (!group->is_packed()) {
      std::vector<float> rotated(values);
      layer.store(side).read(layer.coder(side), row, 1, &position, rotated.data());
      layer.coder(side).rotate_back(rotated.data(), row_floats.data());
    } else if (side == Side::kKeys) {
      layer.codec->decode_key(group->slot(row), position, layer.plane(side), row_floats.data());
    } else {
      layer.codec->decode_value(group->slot(row), layer.plane(side), row_floats.data());
    }
    ggml_fp32_to_fp16_row(row_floats.data(), out.data() + i * values, values);
  }
}

namespace {

void copy_store_rows(CacheGroup& group, GroupLayer& layer, Side side, RowRange from, RowRange to) {
  for (std::int64_t i = 0; i < from.count; ++i) {
    // Cells of removed tokens hold something still, and a place in a group with it.
    if (group.positions()[from.first + i] < 0) {
      layer.store(side).drop(to.first + i);
    } else {
      layer.store(side).copy(layer.coder(side), from.first + i, to.first + i);
    }
  }
}

}  // namespace

void copy_rows(CacheGroup* group, GroupLayer& layer, Side side, RowRange from, RowRange to) {
  group->settle();
  CopyTable& copies = group->copies();
  for (std::int64_t i = 0; leads(layer, side) && i < from.count; ++i) {
    const std::int64_t source = from.first + i, target = to.first + i;
    group->positions()[target] = group->positions()[source];
    group->set_cell_state(target, group->cell_state(source));
    copies.drop(target);
    if (copies.slot(source) >= 0) copies.assign(target);
  }
  std::vector<std::uint8_t> codes(code_bytes(layer, side));
  if (!group->is_packed()) copy_store_rows(*group, layer, side, from, to);
  for (std::int64_t i = 0; i < from.count; ++i) {
    const std::int64_t source = from.first + i, target = to.first + i;
    // The assignment may have cost another cell its slot.
    if (copies.slot(source) < 0) copies.drop(target);
    if (group->positions()[source] < 0) continue;
    if (group->is_packed()) {
      get_codes(*group, layer, side, source, codes);
      set_codes(*group, layer, side, target, codes);
    }
    if (copies.slot(target) < 0) continue;
    std::copy_n(group->copy(layer, side, copies.slot(source)), row_values(layer, side),
                group->copy(layer, side, copies.slot(target)));
  }
}

}  // namespace oscar::ggml_plugin
