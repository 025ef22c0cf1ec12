#include "cache_buffer.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "calibrate/methods.h"
#include "log.h"
#include "rope_source.h"
#include "size_estimate.h"

namespace oscar::ggml_plugin {
namespace {

template <typename Value>
std::string number(const char* format, Value value) {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string mebibytes(std::uint64_t bytes) {
  return number("%.1f MiB", static_cast<double>(bytes) / (1024.0 * 1024.0));
}

// Method, bits, cells, memory, window and kernels of the layers that share their cells.
std::string describe(const CacheGroup& group) {
  const GroupLayer& layer = group.layers().front();
  std::string line = std::string(method_name(group.artefact().method)) + ": keys " +
                     number("%.4g", group.bits_per_value(Side::kKeys)) + ", values " +
                     number("%.4g", group.bits_per_value(Side::kValues)) + " bits a value, " +
                     std::to_string(group.layers().size()) + " layers, " +
                     std::to_string(group.num_rows()) + " cells, " + mebibytes(group.plane_bytes());
  if (group.window_tokens() > 0) {
    line += " and " + mebibytes(group.copy_bytes()) + " for " +
            std::to_string(group.copies().capacity()) + " exact copies (the first " +
            std::to_string(group.window().sink_tokens) + " and last " +
            std::to_string(group.window().recent_tokens) + " tokens)";
  }
  return line + ", " + layer.codec->kernels().name + " kernels on the CPU (OSCAR0)";
}

}  // namespace

CacheBuffer::CacheBuffer(std::size_t num_bytes) : config_(current_config()), memory_(num_bytes) {}

CacheBuffer::~CacheBuffer() { LiveCaches::instance().remove(this); }

void CacheBuffer::add_root(ggml_tensor* root, const CacheName& name) {
  const std::string what = std::string(root->name);
  if (!config_->error().empty()) throw Error(ErrorCode::kInvalidArgument, config_->error());
  if (root->type != GGML_TYPE_F16) {
    throw Error(ErrorCode::kUnsupported,
                what + " has type " + ggml_type_name(root->type) +
                    "; the plugin packs the cache itself and needs -ctk f16 -ctv f16");
  }
  auto layer = std::find_if(layers_.begin(), layers_.end(), [&](const auto& l) {
    return l->tag == name.tag && l->layer == name.layer;
  });
  if (layer == layers_.end()) {
    auto fresh = std::make_unique<CacheLayer>();
    fresh->buffer = this;
    fresh->tag = name.tag;
    fresh->layer = name.layer;
    layer = layers_.insert(layers_.end(), std::move(fresh));
  }
  (*layer)->roots[static_cast<int>(name.side)] = root;
  root->extra = layer->get();
  // The bytes that llama.cpp believes to address are not ours to touch: whoever does is stopped.
  memory_.forbid(static_cast<std::size_t>(static_cast<std::uint8_t*>(root->data) - data()),
                 estimate_root_bytes(*config_, root, name));
  LiveCaches::instance().add(this);
}

void CacheBuffer::refuse(const std::string& reason) {
  if (!refusal_.empty()) return;
  refusal_ = reason;
  log_refusal(reason);
}

std::shared_ptr<const Artefact> CacheBuffer::artefact_for_layers() const {
  if (config_->artefact != nullptr) return config_->artefact;
  std::vector<calibrate::LayerIndexShape> shapes;
  ModelFingerprint model;
  for (const auto& layer : layers_) shapes.push_back({layer->layer, layer->shape});
  std::sort(shapes.begin(), shapes.end(),
            [](const auto& a, const auto& b) { return a.layer < b.layer; });
  const calibrate::LayerShape& first = shapes.front().shape;
  model.num_layers = static_cast<int>(shapes.size());
  model.num_q_heads = first.num_q_heads;
  model.num_kv_heads = first.num_kv_heads;
  model.head_dim_k = first.head_dim_k;
  model.head_dim_v = first.head_dim_v;
  auto artefact =
      std::make_shared<Artefact>(calibrate::make_data_free(config_->spec.method, model, shapes));
  calibrate::apply_kv_spec(config_->spec, artefact.get());
  return artefact;
}

void CacheBuffer::check_layer(const Artefact& artefact, const CacheLayer& layer) const {
  const std::string where = "layer " + std::to_string(layer.layer) + ": ";
  const auto differs = [&where](const char* what, int model, int made_for) {
    if (model == made_for) return;
    throw Error(ErrorCode::kMismatch, where + "the model has " + what + " " +
                                          std::to_string(model) + ", the artefact was made for " +
                                          std::to_string(made_for));
  };
  const auto found = std::find_if(artefact.layers.begin(), artefact.layers.end(),
                                  [&](const ArtefactLayer& l) { return l.layer == layer.layer; });
  if (found == artefact.layers.end()) {
    throw Error(ErrorCode::kMismatch, where + "the artefact, made for " +
                                          std::to_string(artefact.layers.size()) +
                                          " layers, has none of this number");
  }
  differs("num_kv_heads", layer.shape.num_kv_heads, found->num_kv_heads);
  differs("head_dim_k", layer.shape.head_dim_k, found->head_dim_k);
  differs("head_dim_v", layer.shape.head_dim_v, found->head_dim_v);
  const bool uses_mean = !found->k_mean.empty() && key_quant(artefact, *found).bits != 16;
  if (found->rope < 0 || !uses_mean) return;
  if (!layer.rope) {
    throw Error(ErrorCode::kMismatch, where + "the artefact's key mean is from before RoPE, but " +
                                          layer.rope_note + "; calibrate on this model");
  }
  if (const auto difference = rope_difference(*layer.rope, artefact.ropes[found->rope])) {
    throw Error(ErrorCode::kMismatch,
                where + *difference + "; calibrate with the RoPE options that you run with");
  }
}

void CacheBuffer::prepare() {
  if (!groups_.empty() || !refusal_.empty() || layers_.empty()) return;
  for (const auto& layer : layers_) {
    if (layer->root(Side::kKeys) == nullptr || layer->root(Side::kValues) == nullptr) {
      const Side missing = layer->root(Side::kKeys) == nullptr ? Side::kKeys : Side::kValues;
      return refuse("layer " + std::to_string(layer->layer) + " has no cache tensor for " +
                    side_name(missing) +
                    " (multi-head latent attention or an indexer): not supported, start without "
                    "GGML_BACKEND_PATH");
    }
    if (layer->shape.num_kv_heads == 0 || !layer->keys_seen) return;
  }
  try {
    const std::shared_ptr<const Artefact> artefact = artefact_for_layers();
    using Key = std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;
    std::map<Key, std::vector<CacheLayer*>> members;
    for (const auto& layer : layers_) {
      check_layer(*artefact, *layer);
      members[{layer->tag, layer->kv_size(), layer->num_streams(), layer->row_values(Side::kKeys),
               layer->row_values(Side::kValues)}]
          .push_back(layer.get());
    }
    const Window window{config_->spec.sink_tokens, config_->spec.recent_tokens};
    for (const auto& [key, group_layers] : members) {
      groups_.push_back(std::make_unique<CacheGroup>(artefact, window, group_layers, &ropes_));
    }
  } catch (const std::exception& error) {
    groups_.clear();
    refuse(error.what());
  }
}

std::int64_t CacheBuffer::num_windows(const CacheGroup& group) const {
  const CacheLayer& first = *group.layers().front().info;
  const std::int64_t streams = first.num_streams();
  if (config_->copied_sequences) return streams * *config_->copied_sequences;
  return streams > 1 ? streams : std::max<std::int64_t>(1, first.fewest_queries);
}

CacheGroup& CacheBuffer::open_group(CacheLayer& layer) {
  prepare();
  if (!refusal_.empty()) throw Error(ErrorCode::kUnsupported, refusal_);
  if (layer.group == nullptr) {
    throw Error(ErrorCode::kUnsupported, std::string(layer.root(Side::kKeys)->name) +
                                             " is used before its attention was seen");
  }
  if (!layer.group->is_open()) {
    for (const auto& group : groups_) group->open(num_windows(*group));
    if (handle_ != nullptr) handle_->size = bytes();
    announce();
    compare_with_f16();
  }
  return *layer.group;
}

std::uint64_t CacheBuffer::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& group : groups_) sum += group->plane_bytes() + group->copy_bytes();
  return sum;
}

void CacheBuffer::announce() const {
  const bool in_float = config_->spec.force_float || !groups_.front()->is_packed();
  const char* const arithmetic = in_float ? ", codes in floating point" : ", codes in integers";
  for (const auto& group : groups_) log_line(1, describe(*group) + arithmetic);
  const auto has_static_mean = [](const GroupLayer& l) {
    return l.artefact->rope < 0 && l.codec->key_mean(0) != nullptr;
  };
  for (const auto& g : groups_) {
    for (const GroupLayer& l : g->layers()) {
      if (!has_static_mean(l)) continue;
      log_line(1, "layer " + std::to_string(l.info->layer) +
                      ": the key mean is static, not by position" +
                      (l.info->rope_note.empty() ? "" : ": " + l.info->rope_note));
      return;
    }
  }
}

// Short contexts and many slots: a window of copies for each may take what the codes save.
void CacheBuffer::compare_with_f16() const {
  std::uint64_t f16_bytes = 0;
  std::int64_t copies = 0, cells = 0;
  for (const auto& group : groups_) {
    copies += group->copies().capacity();
    cells += group->num_rows();
  }
  for (const auto& layer : layers_)
    f16_bytes += ggml_nbytes(layer->root(Side::kKeys)) + ggml_nbytes(layer->root(Side::kValues));
  if (copies == 0 || bytes() <= f16_bytes) return;
  char text[400];
  std::snprintf(text, sizeof text,
                "codes and exact copies take %.1f MiB, an f16 cache %.1f MiB: %lld of %lld cells "
                "have an exact copy, so this saves no memory and says little about the codes; use "
                "a longer context (-c) or a smaller window (:sink=16,recent=64, OSCAR_COPIES)",
                static_cast<double>(bytes()) / 0x1p20, static_cast<double>(f16_bytes) / 0x1p20,
                static_cast<long long>(copies), static_cast<long long>(cells));
  log_line(1, text);
}

void CacheBuffer::clear(std::uint8_t value) {
  for (const auto& group : groups_) {
    if (group->is_open()) group->clear(value);
  }
}

LiveCaches& LiveCaches::instance() {
  static LiveCaches caches;
  return caches;
}

void LiveCaches::add(CacheBuffer* buffer) {
  const std::lock_guard lock(mutex_);
  ever_any_ = true;
  if (std::find(buffers_.begin(), buffers_.end(), buffer) == buffers_.end())
    buffers_.push_back(buffer);
}

void LiveCaches::remove(CacheBuffer* buffer) {
  const std::lock_guard lock(mutex_);
  std::erase(buffers_, buffer);
}

std::vector<CacheBuffer*> LiveCaches::all() const {
  const std::lock_guard lock(mutex_);
  return buffers_;
}

std::vector<int> LiveCaches::layer_indices() const {
  std::set<int> indices;
  for (const CacheBuffer* buffer : all()) {
    for (const auto& layer : buffer->layers()) indices.insert(layer->layer);
  }
  return {indices.begin(), indices.end()};
}

bool LiveCaches::ever_any() const {
  const std::lock_guard lock(mutex_);
  return ever_any_;
}

}  // namespace oscar::ggml_plugin
