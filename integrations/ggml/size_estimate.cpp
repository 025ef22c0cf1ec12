#include "size_estimate.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "cache/cache_bytes.h"
#include "cache/group_store.h"
#include "calibrate/methods.h"
#include "format/plane_layout.h"
#include "methods/definition.h"

namespace oscar::ggml_plugin {
namespace {

struct SeenShape {
  int head_dim;
  std::int64_t fewest_queries;  // a token per sequence in one of the graphs that are reserved
};
using ShapeKey = std::pair<std::string, std::int64_t>;  // name, values a row

std::mutex shapes_mutex;
std::map<ShapeKey, SeenShape> seen_shapes;

std::optional<SeenShape> seen_shape(const ggml_tensor* root) {
  const std::lock_guard lock(shapes_mutex);
  const auto found = seen_shapes.find({root->name, root->ne[0]});
  if (found == seen_shapes.end()) return std::nullopt;
  return found->second;
}

const ArtefactLayer* artefact_layer(const Config& config, int index) {
  if (config.artefact == nullptr) return nullptr;
  for (const ArtefactLayer& layer : config.artefact->layers) {
    if (layer.layer == index) return &layer;
  }
  return nullptr;
}

// Bytes of a layer's side with this head size; nothing where the spec does not allow it.
std::optional<std::int64_t> side_bytes_for(const Config& config, const CacheName& name,
                                           int head_dim, int num_kv_heads,
                                           const cache::CellExtent& extent, std::int64_t windows) {
  try {
    const Method method = config.artefact != nullptr ? config.artefact->method : config.spec.method;
    const calibrate::DefaultQuants quants =
        calibrate::default_quants(method, {head_dim}, {head_dim});
    Artefact artefact;  // without matrices, which change no byte
    artefact.method = method;
    artefact.k_quant = config.artefact != nullptr ? config.artefact->k_quant : quants.k;
    artefact.v_quant = config.artefact != nullptr ? config.artefact->v_quant : quants.v;
    ArtefactLayer& layer = artefact.layers.emplace_back();
    layer.num_kv_heads = num_kv_heads;
    layer.head_dim_k = layer.head_dim_v = head_dim;
    if (const ArtefactLayer* own = artefact_layer(config, name.layer)) {
      layer.k_bits = own->k_bits;
      layer.v_bits = own->v_bits;
    }
    if (config.artefact == nullptr) {
      KvSpec spec = config.spec;
      spec.keep_all_parts();
      calibrate::apply_kv_spec(spec, &artefact);
    }
    const bool keys = name.side == Side::kKeys;
    if (!methods::definition(method).packed()) {
      const auto coder = keys ? methods::make_key_coder(artefact, artefact.layers.front(), nullptr)
                              : methods::make_value_coder(artefact, artefact.layers.front());
      return cache::store_bytes(*coder, extent.num_rows(), windows);
    }
    QuantSpec quant = keys ? key_quant(artefact, layer) : value_quant(artefact, layer);
    quant.group_size = std::min(quant.group_size, head_dim);
    const PlaneLayout layout{head_dim, quant};
    layout.validate();
    return cache::plane_bytes(layout, num_kv_heads, extent);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<int> known_head_dim(const Config& config, const ggml_tensor* root,
                                  const CacheName& name) {
  if (const ArtefactLayer* layer = artefact_layer(config, name.layer)) {
    return name.side == Side::kKeys ? layer->head_dim_k : layer->head_dim_v;
  }
  const std::optional<SeenShape> seen = seen_shape(root);
  return seen ? std::optional<int>(seen->head_dim) : std::nullopt;
}

}  // namespace

void remember_shape(const ggml_tensor* root, int head_dim, std::int64_t num_queries) {
  const std::lock_guard lock(shapes_mutex);
  const auto [entry, fresh] =
      seen_shapes.try_emplace({root->name, root->ne[0]}, SeenShape{head_dim, num_queries});
  if (fresh) return;
  entry->second.head_dim = head_dim;
  entry->second.fewest_queries = std::min(entry->second.fewest_queries, num_queries);
}

std::uint64_t estimate_root_bytes(const Config& config, const ggml_tensor* root,
                                  const CacheName& name) {
  const std::int64_t row_values = root->ne[0], num_streams = root->ne[2];
  const cache::CellExtent extent{root->ne[1], num_streams};
  const std::optional<SeenShape> seen = seen_shape(root);
  std::int64_t windows = num_streams > 1 ? num_streams : seen ? seen->fewest_queries : 1;
  if (config.copied_sequences) windows = num_streams * *config.copied_sequences;
  std::int64_t plane_bytes = 0;  // all heads
  const auto consider = [&](int head_dim) {
    if (row_values % head_dim != 0) return false;
    const auto bytes = side_bytes_for(config, name, head_dim,
                                      static_cast<int>(row_values / head_dim), extent, windows);
    plane_bytes = std::max(plane_bytes, bytes.value_or(0));
    return bytes.has_value();
  };
  // A shape that is not served is that of another model, seen before in this process.
  const auto known = known_head_dim(config, root, name);
  if (!known || !consider(*known)) {
    for (int head_dim = kMinHeadDim; head_dim <= kMaxHeadDim; head_dim += kHeadDimMultiple)
      consider(head_dim);
  }
  const bool exact = config.spec.k_bits == 16 && config.spec.v_bits == 16;
  const std::int64_t window = std::int64_t{config.spec.sink_tokens} + config.spec.recent_tokens;
  const std::int64_t copies = exact ? 0 : cache::num_copies(window, windows, extent);
  return static_cast<std::uint64_t>(plane_bytes + cache::copy_bytes(copies, row_values));
}

}  // namespace oscar::ggml_plugin
