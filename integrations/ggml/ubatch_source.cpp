#include "ubatch_source.h"

#include <algorithm>
#include <set>
#include <string>

#include "base/error.h"
#include "buffer_type.h"
#include "rope_source.h"

namespace oscar::ggml_plugin {
namespace {

// The first node of the graph with this operation over a tensor of the group; null when it lies in
// another part.
const ggml_tensor* find_node(ggml_cgraph* graph, ggml_op op, const CacheGroup& group, Side side) {
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    const ggml_tensor* node = ggml_graph_node(graph, i);
    if (node->op != op) continue;
    const ggml_tensor* cached = op == GGML_OP_SET_ROWS ? node : node->src[1];
    const CacheLayer* layer = cache_layer(cached);
    if (layer != nullptr && layer->group == &group && layer->side_of(root_of(cached)) == side)
      return node;
  }
  return nullptr;
}

// Without an attention node in sight every cell of a token's stream counts as visible.
Visibility everything_visible(std::span<const std::int64_t> rows, std::int64_t kv_size) {
  std::set<std::int64_t> streams;
  for (const std::int64_t row : rows) streams.insert(row / kv_size);
  Visibility visibility;
  visibility.num_kv = visibility.kv_size = kv_size;
  visibility.first_stream = *streams.begin();
  visibility.tokens_per_stream = std::ssize(rows) / std::ssize(streams);
  return visibility;
}

}  // namespace

Visibility visibility_of(const ggml_tensor* attention, const CacheGroup& group) {
  const ggml_tensor *q = attention->src[0], *k = attention->src[1], *mask = attention->src[3];
  Visibility visibility;
  visibility.num_kv = k->ne[1];
  visibility.kv_size = group.kv_size();
  visibility.tokens_per_stream = q->ne[1];
  visibility.first_stream =
      static_cast<std::int64_t>(k->view_offs / root_of(k)->nb[1]) / group.kv_size();
  if (mask != nullptr) {
    visibility.mask = static_cast<const std::uint16_t*>(mask->data);
    visibility.query_stride = static_cast<std::int64_t>(mask->nb[1] / sizeof(std::uint16_t));
    visibility.stream_stride =
        mask->ne[3] == 1 ? 0 : static_cast<std::int64_t>(mask->nb[3] / sizeof(std::uint16_t));
  }
  return visibility;
}

std::vector<std::int32_t> positions_from_mask(std::span<const std::int64_t> rows,
                                              std::vector<std::int32_t> cell_positions,
                                              const Visibility& visibility) {
  for (const std::int64_t row : rows) cell_positions[row] = -1;
  std::vector<std::int32_t> positions;
  for (std::int64_t token = 0; token < std::ssize(rows); ++token) {
    const std::int64_t first_row = rows[token] / visibility.kv_size * visibility.kv_size;
    std::int32_t last = -1;
    for (std::int64_t row = first_row; row < first_row + visibility.num_kv; ++row) {
      if (cell_positions[row] > last && visibility.sees(token, row)) last = cell_positions[row];
    }
    positions.push_back(last + 1);
    cell_positions[rows[token]] = last + 1;
  }
  return positions;
}

void open_ubatch(const ggml_tensor* write, ggml_cgraph* graph, CacheGroup* group) {
  group->settle();
  Ubatch& ubatch = group->ubatch();
  const ggml_tensor* indices = write->src[1];
  const std::int64_t num_tokens = write->src[0]->ne[1];
  ubatch.rows.clear();
  for (std::int64_t i = 0; i < num_tokens; ++i) {
    const std::int64_t row = row_index(indices, i);
    if (row < 0 || row >= group->num_rows()) {
      throw Error(ErrorCode::kCorrupt, std::string(root_of(write)->name) + ": row index " +
                                           std::to_string(row) + " lies outside the cache of " +
                                           std::to_string(group->num_rows()) + " cells");
    }
    ubatch.rows.push_back(row);
  }
  const ggml_tensor* attention = find_node(graph, GGML_OP_FLASH_ATTN_EXT, *group, Side::kKeys);
  const Visibility visibility = attention != nullptr
                                    ? visibility_of(attention, *group)
                                    : everything_visible(ubatch.rows, group->kv_size());

  const ggml_tensor* keys = find_node(graph, GGML_OP_SET_ROWS, *group, Side::kKeys);
  const ggml_tensor* positions =
      keys != nullptr ? rope_positions(find_rope(keys->src[0])) : nullptr;
  if (positions != nullptr && positions->ne[0] == num_tokens) {
    const auto* values = static_cast<const std::int32_t*>(positions->data);
    ubatch.positions.assign(values, values + num_tokens);
  } else {
    ubatch.positions = positions_from_mask(ubatch.rows, group->positions(), visibility);
  }
  group->reach_position(*std::max_element(ubatch.positions.begin(), ubatch.positions.end()));
  group->begin_ubatch(visibility);
}

}  // namespace oscar::ggml_plugin
