#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "base/error.h"
#include "base/parallel.h"
#include "buffer_type.h"
#include "cache_buffer.h"
#include "ops.h"
#include "ubatch_source.h"

namespace oscar::ggml_plugin {
namespace {

constexpr std::int64_t kCellsPerTask = 128;

// Copy index of the rows that the streams' queries may see, for one layer, at the rows' places in
// *result: the group's slots, and the scratch for the ubatch's own tokens. A long cache that is
// nearly empty costs no more than a short one.
void copy_slots(const GroupLayer& layer, const Visibility& visibility, std::int64_t num_streams,
                CacheGroup* group, std::vector<std::int32_t>* result) {
  const std::vector<std::int32_t>& of_group = group->copies().slots();
  std::vector<std::int32_t>& slots = *result;
  slots.resize(of_group.size());
  for (std::int64_t stream = 0; stream < num_streams; ++stream) {
    const std::int64_t first = (visibility.first_stream + stream) * group->kv_size();
    std::copy_n(of_group.begin() + first, visibility.num_kv, slots.begin() + first);
  }
  const Ubatch& ubatch = group->ubatch();
  const Window& window = group->window();
  for (std::int64_t token = 0; token < std::ssize(ubatch.rows); ++token) {
    const bool exact = window.recent_tokens > 0 || ubatch.positions[token] < window.sink_tokens;
    slots[ubatch.rows[token]] =
        exact ? static_cast<std::int32_t>(group->scratch_index(layer, token)) : -1;
  }
}

// ALiBi: the slope of each query head, as ggml defines it for FLASH_ATTN_EXT.
std::vector<float> alibi_slopes(int num_q_heads, float max_bias) {
  int power_of_two = 1;
  while (2 * power_of_two <= num_q_heads) power_of_two *= 2;
  const double first = std::exp2(-double{max_bias} / power_of_two);
  const double second = std::exp2(-double{max_bias} / 2 / power_of_two);
  std::vector<float> slopes;
  for (int head = 0; head < num_q_heads; ++head) {
    slopes.push_back(static_cast<float>(head < power_of_two
                                            ? std::pow(first, head + 1)
                                            : std::pow(second, 2 * (head - power_of_two) + 1)));
  }
  return slopes;
}

// Every row of one side that the queries of a stream may see, decoded: [num_kv][row].
const float* decode_rows(const GroupLayer& layer, Side side, std::int64_t first_row,
                         std::int64_t num_kv, CacheGroup* group, int num_threads,
                         AlignedBuffer<float>* buffer) {
  const std::int64_t values = layer.info->row_values(side);
  const auto size = static_cast<std::uint64_t>(num_kv * values);
  if (buffer->size() < size) *buffer = AlignedBuffer<float>(size);
  const cache::SideCoder coder = layer.coder(side);
  const std::int64_t num_tasks = (num_kv + kCellsPerTask - 1) / kCellsPerTask;
  parallel_for(num_threads, num_tasks, [&](std::int64_t task, int) {
    const std::int64_t cell = task * kCellsPerTask;
    layer.store(side).read(coder, first_row + cell, std::min(kCellsPerTask, num_kv - cell),
                           group->positions().data() + first_row + cell,
                           buffer->data() + cell * values);
  });
  return buffer->data();
}

void check_usable(const Visibility& visibility, CacheGroup* group) {
  if (group->num_cells(CellState::kGood) == group->num_rows()) return;
  const std::int64_t num_tokens = std::ssize(group->ubatch().rows);
  for (std::int64_t row = 0; row < group->num_rows(); ++row) {
    if (group->cell_state(row) == CellState::kGood) continue;
    for (std::int64_t token = 0; token < num_tokens; ++token) {
      if (visibility.sees(token, row))
        throw Error(ErrorCode::kMismatch, group->unusable_reason(row));
    }
  }
}

std::int64_t floats(std::size_t bytes) { return static_cast<std::int64_t>(bytes / sizeof(float)); }

}  // namespace

void attend(const ggml_tensor* node, OpContext* context) {
  const ggml_tensor *q = node->src[0], *k = node->src[1], *sinks = node->src[4];
  CacheLayer& info = *cache_layer(k);
  CacheGroup& group = info.buffer->open_group(info);
  GroupLayer& layer = group.layer(info);
  const Ubatch& ubatch = group.ubatch();
  if (!ubatch.open || !ubatch.written[0][info.ordinal] || !ubatch.written[1][info.ordinal] ||
      q->ne[1] * q->ne[3] != std::ssize(ubatch.rows)) {
    throw Error(ErrorCode::kUnsupported,
                "layer " + std::to_string(info.layer) + ": " + std::to_string(q->ne[1] * q->ne[3]) +
                    " queries attend the cache, but not right after as many tokens were "
                    "written (a cache shared between contexts?): not supported");
  }
  if (ubatch.moved[info.ordinal]) {
    throw Error(ErrorCode::kUnsupported,
                "layer " + std::to_string(info.layer) +
                    " is attended again in a graph that did not do so when it was "
                    "planned: not supported");
  }
  const Visibility visibility = visibility_of(node, group);
  check_usable(visibility, &group);
  ++info.buffer->num_attended;

  float scale, max_bias, soft_cap;
  std::memcpy(&scale, node->op_params + 0, sizeof scale);
  std::memcpy(&max_bias, node->op_params + 1, sizeof max_bias);
  std::memcpy(&soft_cap, node->op_params + 2, sizeof soft_cap);
  std::vector<float> slopes;
  if (max_bias > 0.0f) slopes = alibi_slopes(info.shape.num_q_heads, max_bias);
  const bool has_copies = group.window_tokens() > 0;
  if (has_copies) copy_slots(layer, visibility, q->ne[3], &group, &context->copy_slots);

  const attention::Plan plan =
      attention::plan({q->ne[1], k->ne[1], info.shape.num_q_heads, info.shape.num_kv_heads,
                       info.shape.head_dim_k, info.shape.head_dim_v},
                      context->num_threads);
  if (context->workspace.size() < plan.workspace_bytes) {
    context->workspace = AlignedBuffer<std::byte>(plan.workspace_bytes);
  }
  for (std::int64_t stream = 0; stream < q->ne[3]; ++stream) {
    const std::int64_t cache_stream = visibility.first_stream + stream;
    const std::int64_t first_row = cache_stream * group.kv_size();
    attention::Params params;
    params.q =
        reinterpret_cast<const float*>(static_cast<const char*>(q->data) + stream * q->nb[3]);
    params.q_query_stride = floats(q->nb[1]);
    params.q_head_stride = floats(q->nb[2]);
    params.out = reinterpret_cast<float*>(static_cast<char*>(node->data) + stream * node->nb[3]);
    params.out_query_stride = floats(node->nb[2]);
    params.out_head_stride = floats(node->nb[1]);
    params.query_positions = ubatch.positions.data() + stream * q->ne[1];
    params.kv.k = layer.plane(Side::kKeys);
    params.kv.v = layer.plane(Side::kValues);
    if (!group.is_packed()) {
      params.kv.k_rows = decode_rows(layer, Side::kKeys, first_row, k->ne[1], &group,
                                     context->num_threads, &context->key_rows);
      params.kv.v_rows = decode_rows(layer, Side::kValues, first_row, k->ne[1], &group,
                                     context->num_threads, &context->value_rows);
    }
    params.kv.first_page = group.first_page(cache_stream);
    params.kv.cell_positions = group.positions().data() + first_row;
    if (has_copies) {
      params.kv.copy_slots = context->copy_slots.data() + first_row;
      params.kv.k_copies = group.copy(layer, Side::kKeys, 0);
      params.kv.v_copies = group.copy(layer, Side::kValues, 0);
    }
    params.codec = layer.codec.get();
    params.scale = scale;
    params.soft_cap = soft_cap;
    params.mask_f16 =
        visibility.mask != nullptr ? visibility.mask + stream * visibility.stream_stride : nullptr;
    params.mask_stride = visibility.query_stride;
    params.mask_slopes = slopes.empty() ? nullptr : slopes.data();
    params.sinks = sinks != nullptr ? static_cast<const float*>(sinks->data) : nullptr;
    params.sink_tokens = group.window().sink_tokens;
    params.recent_tokens = group.window().recent_tokens;
    params.float_path = info.buffer->config().spec.force_float;
    attention::run(plan, params, context->workspace.data());
    if (context->collector != nullptr) {
      context->collector->on_attention(info.layer, info.shape, scale, params.q,
                                       params.q_query_stride, params.q_head_stride, params.out,
                                       params.out_query_stride, params.out_head_stride,
                                       params.query_positions, q->ne[1]);
    }
  }
  group.finish_layer(layer);
}

}  // namespace oscar::ggml_plugin
