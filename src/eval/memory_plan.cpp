#include "eval/memory_plan.h"

#include <ggml.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "cache/cache_bytes.h"
#include "cache/group_store.h"
#include "calibrate/methods.h"
#include "format/plane_layout.h"
#include "methods/definition.h"

namespace oscar::eval {
namespace {

constexpr std::int64_t kMaxContext = std::int64_t{1} << 24;

std::int64_t padded(std::int64_t tokens) {
  return (tokens + kContextMultiple - 1) / kContextMultiple * kContextMultiple;
}

[[noreturn]] void refuse(const ModelLayers& model, const AttentionLayer& layer,
                         const std::string& what) {
  throw Error(ErrorCode::kUnsupported,
              model.path + ": layer " + std::to_string(layer.layer) + ": " + what);
}

void check_packed(const ModelLayers& model, const AttentionLayer& layer) {
  for (const int head_dim : {layer.head_dim_k, layer.head_dim_v}) {
    if (head_dim >= kMinHeadDim && head_dim <= kMaxHeadDim && head_dim % kHeadDimMultiple == 0)
      continue;
    refuse(model, layer,
           "head size " + std::to_string(head_dim) + " is not supported (multiples of " +
               std::to_string(kHeadDimMultiple) + " from " + std::to_string(kMinHeadDim) + " to " +
               std::to_string(kMaxHeadDim) + ")");
  }
  if (layer.num_q_heads % layer.num_kv_heads != 0) {
    refuse(model, layer,
           std::to_string(layer.num_q_heads) + " query heads are no multiple of " +
               std::to_string(layer.num_kv_heads) + " KV heads");
  }
}

void check_layers(const ModelLayers& model, const Artefact& artefact) {
  for (const AttentionLayer& layer : model.layers) {
    const auto found =
        std::find_if(artefact.layers.begin(), artefact.layers.end(),
                     [&](const ArtefactLayer& entry) { return entry.layer == layer.layer; });
    const auto differs = [&](const char* what, int here, int there) {
      if (here == there) return;
      throw Error(ErrorCode::kMismatch,
                  "layer " + std::to_string(layer.layer) + " of the model has " + what + " " +
                      std::to_string(here) + ", of the artefact " + std::to_string(there));
    };
    if (found == artefact.layers.end()) {
      throw Error(ErrorCode::kMismatch, "the artefact, made for " +
                                            std::to_string(artefact.layers.size()) +
                                            " layers, has no layer " + std::to_string(layer.layer));
    }
    differs("num_kv_heads", layer.num_kv_heads, found->num_kv_heads);
    differs("head_dim_k", layer.head_dim_k, found->head_dim_k);
    differs("head_dim_v", layer.head_dim_v, found->head_dim_v);
  }
}

// One layer and one KV head of each head size: how a method stores a row does not depend on how
// many there are, and its transforms would fill the memory of a machine that only asks.
std::vector<calibrate::LayerIndexShape> head_shapes(const ModelLayers& model) {
  std::vector<calibrate::LayerIndexShape> shapes;
  std::set<std::pair<int, int>> seen;
  for (const AttentionLayer& layer : model.layers) {
    if (!seen.insert({layer.head_dim_k, layer.head_dim_v}).second) continue;
    const int queries_per_kv_head = layer.num_q_heads / layer.num_kv_heads;
    shapes.push_back({layer.layer, {queries_per_kv_head, 1, layer.head_dim_k, layer.head_dim_v}});
  }
  return shapes;
}

// The method and how it stores the model's layers; of a FILE all layers, else `head_shapes`.
Artefact artefact_for(const ModelLayers& model, const KvChoice& kv) {
  for (const AttentionLayer& layer : model.layers) check_packed(model, layer);
  try {
    Artefact artefact;
    KvSpec spec = kv.spec;
    if (spec.kind == KvSpec::Kind::kFile) {
      artefact = load_artefact(spec.file);
      check_layers(model, artefact);
    } else {
      artefact = calibrate::make_uncalibrated(spec.method, {}, head_shapes(model));
      // Leaving a part out changes no byte; whether there is such a part, the artefact will tell.
      if (needs_calibration(kv)) spec.keep_all_parts();
    }
    calibrate::apply_kv_spec(spec, &artefact);
    return artefact;
  } catch (const Error& error) {
    throw Error(error.code(), "--kv " + kv.label + ": " + error.what());
  }
}

PlaneLayout layout_of(int head_dim, QuantSpec quant) {
  quant.group_size = std::min(quant.group_size, head_dim);
  return {head_dim, quant};
}

double bits_of(ggml_type type) {
  return 8.0 * static_cast<double>(ggml_type_size(type)) /
         static_cast<double>(ggml_blck_size(type));
}

// llama.cpp's cells for layers with this window.
cache::CellExtent extent_for(std::int64_t sliding_window, const PlanOptions& options) {
  const std::int64_t streams = options.unified ? 1 : options.num_sequences;
  const std::int64_t whole = padded(options.context_tokens);
  const std::int64_t cells = streams == 1 ? whole : padded(whole / streams);
  if (sliding_window == 0 || options.full_sliding_cache) return {cells, streams};
  const std::int64_t windows = sliding_window * (options.unified ? options.num_sequences : 1);
  return {padded(std::min(cells, windows + options.ubatch_tokens)), streams};
}

// Fills the bytes of a group whose layers, shape and cells are known.
class Filler {
 public:
  Filler(const ModelLayers& model, const KvChoice& kv, const PlanOptions& options)
      : model_(model), kv_(kv), options_(options) {
    is_host_ = kv.spec.kind == KvSpec::Kind::kHostType;
    if (!is_host_) artefact_ = artefact_for(model, kv);
  }

  std::string method() const {
    return is_host_ ? kv_.spec.host_type : method_name(artefact_.method);
  }
  bool has_copies() const {
    if (is_host_) return false;
    for (const ArtefactLayer& layer : artefact_.layers) {
      if (key_quant(artefact_, layer).bits != 16 || value_quant(artefact_, layer).bits != 16)
        return true;
    }
    return false;
  }

  void fill(PlanGroup* group) const {
    const auto num_layers = static_cast<std::int64_t>(group->layers.size());
    const cache::CellExtent extent{group->num_cells, group->num_streams};
    const std::int64_t k_values = std::int64_t{group->num_kv_heads} * group->head_dim_k;
    const std::int64_t v_values = std::int64_t{group->num_kv_heads} * group->head_dim_v;
    if (is_host_) {
      const ggml_type type = host_type(kv_.spec.host_type);
      for (const std::int64_t values : {k_values, v_values}) {
        if (values % ggml_blck_size(type) == 0) continue;
        throw Error(ErrorCode::kUnsupported,
                    model_.path + ": --kv " + kv_.label + ": rows of " + std::to_string(values) +
                        " values are no multiple of " + std::to_string(ggml_blck_size(type)));
      }
      group->k_bits = group->v_bits = bits_of(type);
      group->bytes_per_token = static_cast<std::uint64_t>(num_layers) *
                               (ggml_row_size(type, k_values) + ggml_row_size(type, v_values));
      group->code_bytes = group->bytes_per_token * static_cast<std::uint64_t>(extent.num_rows());
      return;
    }
    const std::int64_t windows = options_.copied_sequences
                                     ? extent.num_streams * *options_.copied_sequences
                                     : options_.num_sequences;
    methods::SideBytes bytes;  // of a token, all layers
    for (const int index : group->layers) {
      const ArtefactLayer layer = sizes_of(index, *group);
      const methods::SideBytes one = methods::bytes_per_token(artefact_, layer);
      bytes.keys += one.keys;
      bytes.values += one.values;
      group->code_bytes += static_cast<std::uint64_t>(layer_code_bytes(layer, extent, windows));
    }
    group->k_bits = 8.0 * bytes.keys / static_cast<double>(num_layers * k_values);
    group->v_bits = 8.0 * bytes.values / static_cast<double>(num_layers * v_values);
    group->bytes_per_token = static_cast<std::uint64_t>(bytes.keys + bytes.values);
    if (!has_copies()) return;
    const std::int64_t window = std::int64_t{kv_.spec.sink_tokens} + kv_.spec.recent_tokens;
    group->num_copies = cache::num_copies(window, windows, extent);
    group->copy_bytes = static_cast<std::uint64_t>(
        num_layers * cache::copy_bytes(group->num_copies, k_values + v_values));
  }

 private:
  // The layer's shape, and its bits where the artefact has some for it.
  ArtefactLayer sizes_of(int index, const PlanGroup& group) const {
    ArtefactLayer sizes;
    for (const ArtefactLayer& layer : artefact_.layers) {
      if (layer.layer != index) continue;
      sizes.k_bits = layer.k_bits;
      sizes.v_bits = layer.v_bits;
    }
    sizes.num_kv_heads = group.num_kv_heads;
    sizes.head_dim_k = group.head_dim_k;
    sizes.head_dim_v = group.head_dim_v;
    return sizes;
  }

  // Both sides of one layer.
  std::int64_t layer_code_bytes(const ArtefactLayer& layer, const cache::CellExtent& extent,
                                std::int64_t windows) const {
    if (const auto keys = methods::make_key_coder(artefact_, layer, nullptr)) {
      const auto values = methods::make_value_coder(artefact_, layer);
      return cache::store_bytes(*keys, extent.num_rows(), windows) +
             cache::store_bytes(*values, extent.num_rows(), windows);
    }
    return cache::plane_bytes(layout_of(layer.head_dim_k, key_quant(artefact_, layer)),
                              layer.num_kv_heads, extent) +
           cache::plane_bytes(layout_of(layer.head_dim_v, value_quant(artefact_, layer)),
                              layer.num_kv_heads, extent);
  }

  const ModelLayers& model_;
  const KvChoice& kv_;
  const PlanOptions& options_;
  bool is_host_ = false;
  Artefact artefact_;
};

}  // namespace

std::uint64_t KvPlan::bytes() const {
  std::uint64_t sum = 0;
  for (const PlanGroup& group : groups) sum += group.bytes();
  return sum;
}

std::uint64_t KvPlan::bytes_per_token() const {
  std::uint64_t sum = 0;
  for (const PlanGroup& group : groups) {
    if (group.sliding_window == 0) sum += group.bytes_per_token;
  }
  return sum;
}

std::uint64_t KvPlan::bytes_per_sequence() const {
  return bytes() / static_cast<std::uint64_t>(num_sequences);
}

double KvPlan::bits_per_value() const {
  double values = 0;
  for (const PlanGroup& group : groups) {
    values += static_cast<double>(group.layers.size()) * group.num_kv_heads *
              (group.head_dim_k + group.head_dim_v) *
              static_cast<double>(group.num_cells * group.num_streams);
  }
  return values > 0 ? 8.0 * static_cast<double>(bytes()) / values : 0;
}

KvPlan plan_memory(const ModelLayers& model, const KvChoice& kv, const PlanOptions& options) {
  const Filler filler(model, kv, options);
  KvPlan plan;
  plan.kv = kv.label;
  plan.method = filler.method();
  plan.num_sequences = options.num_sequences;
  plan.context_tokens = padded(options.context_tokens);
  if (filler.has_copies()) {
    plan.sink_tokens = kv.spec.sink_tokens;
    plan.recent_tokens = kv.spec.recent_tokens;
  }
  using Key = std::tuple<bool, std::int64_t, int, int, int>;  // full attention first
  std::map<Key, PlanGroup> groups;
  for (const AttentionLayer& layer : model.layers) {
    PlanGroup& group = groups[{layer.sliding_window > 0, layer.sliding_window, layer.num_kv_heads,
                               layer.head_dim_k, layer.head_dim_v}];
    group.num_kv_heads = layer.num_kv_heads;
    group.head_dim_k = layer.head_dim_k;
    group.head_dim_v = layer.head_dim_v;
    group.sliding_window = layer.sliding_window;
    group.layers.push_back(layer.layer);
  }
  for (auto& [key, group] : groups) {
    const cache::CellExtent extent = extent_for(group.sliding_window, options);
    group.num_cells = extent.num_cells;
    group.num_streams = extent.num_streams;
    filler.fill(&group);
    plan.groups.push_back(std::move(group));
  }
  return plan;
}

std::int64_t longest_context(const ModelLayers& model, const KvChoice& kv, PlanOptions options,
                             std::uint64_t bytes) {
  const std::int64_t limit =
      model.context_length > 0
          ? model.context_length * (options.unified ? 1 : options.num_sequences)
          : kMaxContext;
  // low fits, high does not, in multiples.
  std::int64_t low = 0, high = std::max(limit / kContextMultiple, std::int64_t{1}) + 1;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    options.context_tokens = middle * kContextMultiple;
    (plan_memory(model, kv, options).bytes() <= bytes ? low : high) = middle;
  }
  return low * kContextMultiple;
}

}  // namespace oscar::eval
