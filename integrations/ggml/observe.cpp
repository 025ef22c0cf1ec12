#include "observe.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

#include "buffer_type.h"
#include "cache_buffer.h"
#include "format/quant_spec.h"
#include "rope_source.h"
#include "size_estimate.h"

namespace oscar::ggml_plugin {
namespace {

constexpr const char* kWithoutPlugin = "; start without GGML_BACKEND_PATH";

bool is_view(const ggml_tensor* t) {
  return t->op == GGML_OP_NONE || t->op == GGML_OP_VIEW || t->op == GGML_OP_RESHAPE ||
         t->op == GGML_OP_PERMUTE || t->op == GGML_OP_TRANSPOSE;
}

std::string legal_head_dims() {
  return "multiples of " + std::to_string(kHeadDimMultiple) + " from " +
         std::to_string(kMinHeadDim) + " to " + std::to_string(kMaxHeadDim);
}

bool legal_head_dim(std::int64_t dim) {
  return dim >= kMinHeadDim && dim <= kMaxHeadDim && dim % kHeadDimMultiple == 0;
}

void observe_write(ggml_tensor* node, ggml_backend_graph_optimize_params* params) {
  CacheLayer* const layer = cache_layer(node);
  if (layer == nullptr) return;
  const ggml_tensor* const root = root_of(node);
  const ggml_tensor* const rows = node->src[0];
  if (rows->type != GGML_TYPE_F32 || rows->ne[0] != root->ne[0]) {
    return layer->buffer->refuse(std::string(root->name) + " is written " +
                                 std::to_string(rows->ne[0]) + " " + ggml_type_name(rows->type) +
                                 " value(s) at a time, as -fa off does, not " +
                                 std::to_string(root->ne[0]) +
                                 " f32; the plugin computes attention itself: use -fa on or auto");
  }
  if (layer->side_of(root) != Side::kKeys) return;
  const RopeSource source = find_rope(rows);
  if (const ggml_tensor* positions = rope_positions(source); positions != nullptr) {
    params->add_alloc_dep(params->user_data, const_cast<ggml_tensor*>(positions), node);
  }
  layer->num_readers = 0;
  if (layer->keys_seen) return;
  layer->keys_seen = true;
  layer->rope_note = source.note;
  if (source.rotation_known) layer->rope = rope_spec_of(source.node);
}

void observe_attention(const ggml_tensor* node) {
  const ggml_tensor *q = node->src[0], *k = node->src[1], *v = node->src[2], *mask = node->src[3];
  const ggml_tensor *k_root = cache_root(k), *v_root = cache_root(v);
  if (k_root != nullptr) remember_shape(k_root, static_cast<int>(k->ne[0]), q->ne[1]);
  if (v_root != nullptr) remember_shape(v_root, static_cast<int>(v->ne[0]), q->ne[1]);
  CacheLayer* const layer = cache_layer(k) != nullptr ? cache_layer(k) : cache_layer(v);
  if (layer == nullptr) return;
  const std::string where = "layer " + std::to_string(layer->layer) + ": ";
  const auto refuse = [&](const std::string& reason) {
    layer->buffer->refuse(where + reason + kWithoutPlugin);
  };
  if (k_root != layer->root(Side::kKeys) || v_root != layer->root(Side::kValues)) {
    return refuse(
        "its attention does not read the keys and values of one layer (multi-head latent "
        "attention?): not supported");
  }
  for (const ggml_tensor* side : {k, v}) {
    if (!legal_head_dim(side->ne[0])) {
      return refuse("head size " + std::to_string(side->ne[0]) + " is not supported; legal are " +
                    legal_head_dims());
    }
    if (side->ne[0] * side->ne[2] != root_of(side)->ne[0]) {
      return refuse(std::to_string(side->ne[2]) + " heads of " + std::to_string(side->ne[0]) +
                    " do not fill the " + std::to_string(root_of(side)->ne[0]) +
                    " values of a row: not supported");
    }
  }
  if (q->type != GGML_TYPE_F32 ||
      (mask != nullptr && (mask->type != GGML_TYPE_F16 || mask->ne[2] != 1))) {
    return refuse(std::string("queries of type ") + ggml_type_name(q->type) +
                  " or a mask per head: not supported");
  }
  layer->shape = {static_cast<int>(q->ne[2]), static_cast<int>(k->ne[2]),
                  static_cast<int>(k->ne[0]), static_cast<int>(v->ne[0])};
  std::memcpy(&layer->attention_scale, node->op_params, sizeof(float));
  // Only graphs that llama.cpp reserves read the whole cache; those that run would say how many
  // tokens come, not how many sequences there are.
  if (k->ne[1] == layer->kv_size()) {
    layer->fewest_queries =
        layer->fewest_queries == 0 ? q->ne[1] : std::min(layer->fewest_queries, q->ne[1]);
  }
  ++layer->num_readers;
}

// A cache tensor in memory of another device. llama.cpp's dry runs give it none.
bool lies_elsewhere(const ggml_tensor* tensor) {
  const ggml_tensor* root = root_of(tensor);
  return root->buffer != nullptr && root->buffer->buft != buffer_type() &&
         parse_cache_name(root->name) &&
         ggml_backend_buffer_get_size(root->buffer) >= ggml_nbytes(root);
}

}  // namespace

bool uses_cache_elsewhere(const ggml_tensor* op) {
  const bool elsewhere = (op->op == GGML_OP_SET_ROWS && lies_elsewhere(op)) ||
                         (op->op == GGML_OP_FLASH_ATTN_EXT && lies_elsewhere(op->src[1]));
  return elsewhere && !current_config()->allow_partial && LiveCaches::instance().all().empty();
}

bool touches_cache(const ggml_tensor* op) {
  if (cache_root(op) != nullptr) return true;
  return std::any_of(std::begin(op->src), std::end(op->src), [](const ggml_tensor* src) {
    return src != nullptr && cache_root(src) != nullptr;
  });
}

void observe_graph(ggml_cgraph* graph, ggml_backend_graph_optimize_params* params) {
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    ggml_tensor* const node = ggml_graph_node(graph, i);
    if (is_view(node) || !touches_cache(node)) continue;
    switch (node->op) {
      case GGML_OP_SET_ROWS: observe_write(node, params); break;
      case GGML_OP_FLASH_ATTN_EXT: observe_attention(node); break;
      case GGML_OP_ROPE: break;
      default: {
        for (const ggml_tensor* t :
             {static_cast<const ggml_tensor*>(node), static_cast<const ggml_tensor*>(node->src[0]),
              static_cast<const ggml_tensor*>(node->src[1])}) {
          CacheLayer* const layer = t != nullptr ? cache_layer(t) : nullptr;
          if (layer == nullptr) continue;
          layer->buffer->refuse(
              std::string(root_of(t)->name) + " is used by " + ggml_op_name(node->op) +
              ", which the plugin does not compute (-fa off, or an attention of its own kind): use "
              "-fa on or auto, or start without GGML_BACKEND_PATH");
        }
      }
    }
  }
}

std::string missing_layers() {
  const std::vector<int> present = LiveCaches::instance().layer_indices();
  const std::set<int> here(present.begin(), present.end());
  for (const CacheBuffer* buffer : LiveCaches::instance().all()) {
    if (buffer->groups().empty() || buffer->config().allow_partial) continue;
    int first_missing = -1, num_missing = 0;
    const auto expect = [&](int layer) {
      if (here.contains(layer)) return;
      if (num_missing++ == 0) first_missing = layer;
    };
    if (buffer->config().artefact != nullptr) {
      for (const ArtefactLayer& layer : buffer->config().artefact->layers) expect(layer.layer);
    } else {
      // llama.cpp leaves the first layers elsewhere when it does not offload all.
      for (int layer = 0; layer < present.front(); ++layer) expect(layer);
    }
    if (num_missing == 0) continue;
    return "the KV cache of " + std::to_string(num_missing) + " layer(s) from layer " +
           std::to_string(first_missing) + " on does not lie on this device, that of " +
           std::to_string(present.size()) +
           " does: use -ngl 99, or OSCAR_PARTIAL=1 for a mixed cache";
  }
  return "";
}

}  // namespace oscar::ggml_plugin
