#include "size_estimate.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "cache/cache_bytes.h"
#include "calibrate/methods.h"
#include "format/plane_layout.h"

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

// How a side with this head size is stored; nothing where the spec does not allow it.
std::optional<PlaneLayout> layout_for(const Config& config, Side side, int head_dim) {
  try {
    QuantSpec quant;
    if (config.artefact != nullptr) {
      quant = side == Side::kKeys ? config.artefact->k_quant : config.artefact->v_quant;
    } else {
      const calibrate::LayerShape shape{1, 1, head_dim, head_dim};
      const ModelFingerprint model{"", 1, 1, 1, head_dim, head_dim, ""};
      Artefact artefact = calibrate::make_data_free(config.spec.method, model, {{0, shape}});
      calibrate::apply_kv_spec(config.spec, &artefact);
      quant = side == Side::kKeys ? artefact.k_quant : artefact.v_quant;
    }
    quant.group_size = std::min(quant.group_size, head_dim);
    const PlaneLayout layout{head_dim, quant};
    layout.validate();
    return layout;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<int> known_head_dim(const Config& config, const ggml_tensor* root,
                                  const CacheName& name) {
  if (config.artefact != nullptr) {
    for (const ArtefactLayer& layer : config.artefact->layers) {
      if (layer.layer == name.layer)
        return name.side == Side::kKeys ? layer.head_dim_k : layer.head_dim_v;
    }
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
  std::int64_t plane_bytes = 0;  // all heads
  const auto consider = [&](int head_dim) {
    if (row_values % head_dim != 0) return;
    if (const auto layout = layout_for(config, name.side, head_dim)) {
      plane_bytes =
          std::max(plane_bytes,
                   cache::plane_bytes(*layout, static_cast<int>(row_values / head_dim), extent));
    }
  };
  if (const auto known = known_head_dim(config, root, name)) {
    consider(*known);
  } else {
    for (int head_dim = kMinHeadDim; head_dim <= kMaxHeadDim; head_dim += kHeadDimMultiple)
      consider(head_dim);
  }
  const bool exact = config.spec.k_bits == 16 && config.spec.v_bits == 16;
  const std::optional<SeenShape> seen = seen_shape(root);
  std::int64_t windows = num_streams > 1 ? num_streams : seen ? seen->fewest_queries : 1;
  if (config.copied_sequences) windows = num_streams * *config.copied_sequences;
  const std::int64_t window = std::int64_t{config.spec.sink_tokens} + config.spec.recent_tokens;
  const std::int64_t copies = exact ? 0 : cache::num_copies(window, windows, extent);
  return static_cast<std::uint64_t>(plane_bytes + cache::copy_bytes(copies, row_values));
}

}  // namespace oscar::ggml_plugin
