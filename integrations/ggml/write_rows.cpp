#include <algorithm>
#include <cmath>
#include <string>

#include "base/bf16.h"
#include "base/error.h"
#include "base/parallel.h"
#include "buffer_type.h"
#include "cache_buffer.h"
#include "ops.h"
#include "ubatch_source.h"

namespace oscar::ggml_plugin {
namespace {

constexpr std::int64_t kTokensPerTask = 32;
// Multiplications below which a second thread costs more than it saves: some 10 µs of work.
constexpr std::int64_t kWorkOfAThread = 1 << 18;

int threads_for(const GroupLayer& layer, Side side, std::int64_t num_tokens, int num_threads) {
  const std::int64_t dim = layer.head_dim(side);
  const std::int64_t work = num_tokens * layer.info->shape.num_kv_heads * dim * dim;
  return work < kWorkOfAThread ? 1 : num_threads;
}

// All rows of the layer's ubatch, exact, for the queries of the same ubatch.
void fill_scratch(const float* rows, std::int64_t row_stride, std::int64_t row_values,
                  const GroupLayer& layer, Side side, CacheGroup* group, int num_threads) {
  const std::int64_t num_tokens = std::ssize(group->ubatch().rows);
  const std::int64_t num_tasks = (num_tokens + kTokensPerTask - 1) / kTokensPerTask;
  parallel_for(num_threads, num_tasks, [&](std::int64_t task, int) {
    const std::int64_t end = std::min(num_tokens, (task + 1) * kTokensPerTask);
    for (std::int64_t token = task * kTokensPerTask; token < end; ++token) {
      const float* const row = rows + token * row_stride;
      bf16_t* const copy = group->copy(layer, side, group->scratch_index(layer, token));
      for (std::int64_t i = 0; i < row_values; ++i) copy[i] = bf16_from_float(row[i]);
    }
  });
}

std::string describe_non_finite(const cache::Rows& rows, std::int64_t row_values) {
  std::int64_t count = 0;
  for (std::int64_t token = 0; token < rows.num_tokens; ++token) {
    const float* const row = rows.data + token * rows.token_stride;
    if (!std::all_of(row, row + row_values, [](float x) { return std::isfinite(x); })) ++count;
  }
  if (count == 0) return "values beyond the range of BF16";
  return "NaN or Inf in " + std::to_string(count) + " of " + std::to_string(rows.num_tokens) +
         " rows";
}

void collect(const GroupLayer& layer, Side side, const cache::Rows& rows, CacheGroup* group,
             calibrate::Collector* collector) {
  CacheLayer& info = *layer.info;
  if (side == Side::kValues) {
    return collector->on_values(info.layer, info.shape, rows.data, rows.token_stride,
                                rows.head_stride, rows.num_tokens);
  }
  const std::vector<std::int32_t>& positions = group->ubatch().positions;
  std::shared_ptr<const RopeTable> table;
  if (info.rope) {
    table = info.buffer->ropes().table(*info.rope,
                                       *std::max_element(positions.begin(), positions.end()));
  }
  collector->on_keys(info.layer, info.shape, info.rope ? &*info.rope : nullptr, table.get(),
                     rows.data, rows.token_stride, rows.head_stride, positions.data(),
                     rows.num_tokens);
}

}  // namespace

void write_rows(const ggml_tensor* node, ggml_cgraph* graph, OpContext* context) {
  CacheLayer& info = *cache_layer(node);
  CacheGroup& group = info.buffer->open_group(info);
  const Side side = info.side_of(root_of(node));
  const int s = static_cast<int>(side);
  if (!group.ubatch().open || group.ubatch().written[s][info.ordinal])
    open_ubatch(node, graph, &group);
  Ubatch& ubatch = group.ubatch();
  const ggml_tensor* src = node->src[0];
  if (src->ne[1] != std::ssize(ubatch.rows)) {
    throw Error(ErrorCode::kUnsupported, std::string(root_of(node)->name) + ": " +
                                             std::to_string(src->ne[1]) +
                                             " rows written, but the graph began with " +
                                             std::to_string(ubatch.rows.size()));
  }
  GroupLayer& layer = group.layer(info);
  const int num_threads = threads_for(layer, side, src->ne[1], context->num_threads);
  const cache::Rows rows{static_cast<const float*>(src->data), src->ne[1],
                         static_cast<std::int64_t>(src->nb[1] / sizeof(float)),
                         layer.head_dim(side)};
  const bool finite =
      !group.is_packed()
          ? layer.store(side).write(layer.coder(side), rows, ubatch.rows, ubatch.predecessors,
                                    ubatch.positions.data(), context->num_threads)
      : side == Side::kKeys
          ? layer.codec->encode_keys(rows, ubatch.positions.data(), ubatch.slots.data(),
                                     layer.plane(side), num_threads)
          : layer.codec->encode_values(rows, ubatch.slots.data(), layer.plane(side), num_threads);
  if (!finite) {
    throw Error(ErrorCode::kCorrupt, "layer " + std::to_string(info.layer) + ": the model's " +
                                         side_name(side) + " hold " +
                                         describe_non_finite(rows, src->ne[0]) +
                                         "; the model or its file is broken");
  }
  if (group.window_tokens() > 0) {
    fill_scratch(rows.data, rows.token_stride, src->ne[0], layer, side, &group, num_threads);
  }
  ubatch.written[s][info.ordinal] = true;
  if (context->collector != nullptr) collect(layer, side, rows, &group, context->collector);
}

}  // namespace oscar::ggml_plugin
