#include <algorithm>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "base/error.h"
#include "base/parallel.h"
#include "buffer_type.h"
#include "cache_buffer.h"
#include "log.h"
#include "ops.h"
#include "rope_source.h"

namespace oscar::ggml_plugin {
namespace {

constexpr std::int64_t kCellsPerBatch = 256;  // decoded, rotated and encoded together

struct Shifted {
  std::vector<std::int64_t> rows, slots;
  std::vector<std::int32_t> from, to, by;
};

// The cells that move. A position below 0 would be a token before the text's begin.
Shifted cells_to_shift(const std::int32_t* deltas, CacheGroup* group) {
  Shifted shifted;
  const GroupLayer& first = group->layers().front();
  const bool any_position = first.exact(Side::kKeys) && first.exact(Side::kValues);
  for (std::int64_t row = 0; row < group->num_rows(); ++row) {
    const std::int32_t from = group->positions()[row];
    if (deltas[row] == 0 || from < 0) continue;
    std::int32_t to = from + deltas[row];
    // Exact rows restored from a state do not know their position, and nothing of them depends on
    // it.
    if (to < 0 && any_position) to = 0;
    if (to < 0) {
      throw Error(ErrorCode::kInvalidArgument, "context shift: position " + std::to_string(from) +
                                                   " would move to " + std::to_string(to) +
                                                   "; positions are at least 0");
    }
    shifted.rows.push_back(row);
    shifted.slots.push_back(group->slot(row));
    shifted.from.push_back(from);
    shifted.to.push_back(to);
    shifted.by.push_back(deltas[row]);
  }
  return shifted;
}

void rotate_by(const RopeTable& table, std::int32_t delta, float* key) {
  if (delta >= 0) {
    table.rotate(key, delta);
  } else {
    table.rotate_back(key, -delta);
  }
}

void shift_codes(const Shifted& cells, const GroupLayer& layer, const RopeTable& table,
                 int num_threads) {
  const int head_dim = layer.head_dim(Side::kKeys);
  const std::int64_t row_values = std::int64_t{head_dim} * layer.info->shape.num_kv_heads;
  std::vector<float> keys(static_cast<std::size_t>(kCellsPerBatch * row_values));
  for (std::int64_t begin = 0; begin < std::ssize(cells.rows); begin += kCellsPerBatch) {
    const std::int64_t count = std::min(kCellsPerBatch, std::ssize(cells.rows) - begin);
    parallel_for(num_threads, count, [&](std::int64_t i, int) {
      float* const row = keys.data() + i * row_values;
      layer.codec->decode_key(cells.slots[begin + i], cells.from[begin + i],
                              layer.plane(Side::kKeys), row);
      for (int head = 0; head < layer.info->shape.num_kv_heads; ++head) {
        rotate_by(table, cells.by[begin + i], row + head * head_dim);
      }
    });
    layer.codec->encode_keys({keys.data(), count, row_values, head_dim}, cells.to.data() + begin,
                             cells.slots.data() + begin, layer.plane(Side::kKeys), num_threads);
  }
}

void shift_copies(const Shifted& cells, const GroupLayer& layer, const RopeTable& table,
                  CacheGroup* group) {
  const int head_dim = layer.head_dim(Side::kKeys);
  std::vector<float> key(head_dim);
  for (std::size_t i = 0; i < cells.rows.size(); ++i) {
    const std::int32_t slot = group->copies().slot(cells.rows[i]);
    if (slot < 0) continue;
    for (int head = 0; head < layer.info->shape.num_kv_heads; ++head) {
      bf16_t* const copy = group->copy(layer, Side::kKeys, slot) + std::int64_t{head} * head_dim;
      std::transform(copy, copy + head_dim, key.begin(), bf16_to_float);
      rotate_by(table, cells.by[i], key.data());
      std::transform(key.begin(), key.end(), copy, bf16_from_float);
    }
  }
}

}  // namespace

void shift_keys(const ggml_tensor* node, OpContext* context) {
  CacheLayer& info = *cache_layer(node);
  CacheGroup& group = info.buffer->open_group(info);
  GroupLayer& layer = group.layer(info);
  group.require_packed("cannot be shifted to other positions");
  const std::string where = "layer " + std::to_string(info.layer) + ": context shift ";
  const ggml_tensor* deltas = node->src[1];
  if (deltas->type != GGML_TYPE_I32 || deltas->ne[0] != group.num_rows() || node->view_offs != 0) {
    throw Error(ErrorCode::kUnsupported,
                where + "does not name each cell and each channel from 0 on: not supported");
  }
  const RopeSource source = find_rope(node);
  if (!source.rotation_known)
    throw Error(ErrorCode::kUnsupported, where + "with " + source.note + ": not supported");
  // The key carries its magnitude already: shifting turns it and leaves its length.
  RopeSpec spec = rope_spec_of(node);
  spec.magnitude = 1.0f;

  const auto* values = static_cast<const std::int32_t*>(deltas->data);
  group.begin_shift(info.ordinal);
  const Shifted cells = cells_to_shift(values, &group);
  if (cells.rows.empty()) return;
  std::int32_t largest = 0;
  for (std::size_t i = 0; i < cells.rows.size(); ++i) {
    largest = std::max({largest, cells.to[i], std::abs(cells.by[i])});
  }
  group.reach_position(largest);
  const auto table = info.buffer->ropes().table(spec, largest);
  if (info.ordinal == 0 && !info.buffer->said_shift) {
    info.buffer->said_shift = true;
    log_line(1, layer.exact(Side::kKeys)
                    ? "context shift: keys are rotated and stored again"
                    : "context shift: coded keys are decoded, rotated and encoded "
                      "again, which adds the coding error once more");
  }
  shift_codes(cells, layer, *table, context->num_threads);
  shift_copies(cells, layer, *table, &group);
  group.set_shifted(cells.rows, cells.to);
}

}  // namespace oscar::ggml_plugin
