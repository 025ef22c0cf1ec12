#include "eval/model_layers.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "eval/byte_reader.h"
#include "eval/config_layers.h"
#include "eval/gguf_check.h"
#include "eval/model_file.h"

namespace oscar::eval {
namespace {

constexpr int kGemma3nOwnLayers = 20;  // later layers read the cache of an earlier one

class GgufLayers {
 public:
  explicit GgufLayers(const std::string& path)
      : file_(open_model_file(path)), header_(check_gguf(path)) {}

  ModelLayers read() const {
    refuse_other_memories();
    ModelLayers model;
    model.path = file_.path;
    model.architecture = file_.fingerprint.architecture;
    model.is_gguf = true;
    model.context_length = file_.context_length;
    const std::int64_t total = integer("block_count").value_or(0);
    std::int64_t num_layers = total - integer("nextn_predict_layers").value_or(0);
    num_layers = std::min(num_layers, total - integer("attention.shared_kv_layers").value_or(0));
    if (model.architecture == "gemma3n") {
      num_layers = std::min<std::int64_t>(num_layers, kGemma3nOwnLayers);
    }
    for (int layer = 0; layer < num_layers; ++layer) {
      AttentionLayer entry;
      entry.layer = layer;
      entry.num_q_heads = per_layer("attention.head_count", layer, file_.fingerprint.num_q_heads);
      entry.num_kv_heads = per_layer("attention.head_count_kv", layer, entry.num_q_heads);
      if (entry.num_kv_heads == 0) continue;
      entry.sliding_window = sliding_window(layer);
      const bool own = entry.sliding_window > 0 && integer("attention.key_length_swa").has_value();
      entry.head_dim_k = own ? size("attention.key_length_swa") : file_.fingerprint.head_dim_k;
      entry.head_dim_v = own ? size("attention.value_length_swa") : file_.fingerprint.head_dim_v;
      model.layers.push_back(entry);
    }
    return model;
  }

 private:
  std::string key(const std::string& name) const {
    return file_.fingerprint.architecture + "." + name;
  }
  std::optional<std::int64_t> integer(const std::string& name) const {
    return header_.integer(key(name));
  }
  int size(const std::string& name) const {
    const std::int64_t value = integer(name).value_or(0);
    if (value < 1 || value > 1 << 20) {
      throw Error(ErrorCode::kCorrupt, file_.path + ": key '" + key(name) + "' is " +
                                           std::to_string(value) + "; it must be 1 to 1048576");
    }
    return static_cast<int>(value);
  }
  int per_layer(const std::string& name, int layer, int fallback) const {
    const std::vector<std::int64_t> values = header_.integers(key(name));
    if (values.empty()) return fallback;
    if (values.size() == 1) return static_cast<int>(values[0]);
    if (static_cast<std::size_t>(layer) >= values.size()) {
      throw Error(ErrorCode::kCorrupt, file_.path + ": key '" + key(name) + "' has " +
                                           std::to_string(values.size()) +
                                           " values, none for layer " + std::to_string(layer));
    }
    return static_cast<int>(values[static_cast<std::size_t>(layer)]);
  }

  void refuse_other_memories() const {
    const std::string& architecture = file_.fingerprint.architecture;
    if (file_.has_latent_attention) {
      throw Error(ErrorCode::kUnsupported, file_.path + ": architecture " + architecture +
                                               " keeps a latent vector (MLA), not keys and values: "
                                               "not supported");
    }
    for (const std::string_view family : {"ssm.", "wkv.", "shortconv.", "kda."}) {
      const std::string prefix = architecture + "." + std::string(family);
      const auto found = header_.values.lower_bound(prefix);
      if (found == header_.values.end() || found->first.rfind(prefix, 0) != 0) continue;
      throw Error(ErrorCode::kUnsupported,
                  file_.path + ": architecture " + architecture + " has recurrent layers (key '" +
                      found->first + "'), whose state is not keys and values: not supported");
    }
    if (integer("attention.indexer.head_count")) {
      throw Error(ErrorCode::kUnsupported, file_.path + ": architecture " + architecture +
                                               " keeps an indexer's cache beside its keys and "
                                               "values: not supported");
    }
  }

  std::int64_t sliding_window(int layer) const {
    const std::string& architecture = file_.fingerprint.architecture;
    const WindowPattern known = window_pattern(architecture);
    const std::int64_t window = integer("attention.sliding_window").value_or(known.window);
    if (window <= 0 || known.period == 1) return 0;
    const std::string pattern_key = key("attention.sliding_window_pattern");
    const std::vector<std::int64_t> pattern = header_.integers(pattern_key);
    if (pattern.size() > 1) {
      const auto index = static_cast<std::size_t>(layer);
      return index < pattern.size() && pattern[index] != 0 ? window : 0;
    }
    WindowPattern rule = known;
    if (pattern.size() == 1) rule.period = static_cast<int>(pattern[0]);
    if (rule.period == 0 && pattern.size() == 1) return window;
    if (rule.period < 1) {
      throw Error(ErrorCode::kUnsupported, file_.path + ": architecture " + architecture +
                                               " has sliding windows of " + std::to_string(window) +
                                               " tokens, but not in a pattern that is known here");
    }
    return rule.has_window(layer) ? window : 0;
  }

  ModelFile file_;
  GgufHeader header_;
};

}  // namespace

ModelLayers read_model_layers(const std::string& path) {
  char magic[4] = {};
  {
    ByteReader reader(path);
    if (!reader.read(magic, sizeof magic)) {
      throw Error(ErrorCode::kCorrupt, path + ": has only " + std::to_string(reader.size()) +
                                           " bytes; give a GGUF file or a config.json");
    }
  }
  ModelLayers model = std::string_view(magic, sizeof magic) == "GGUF" ? GgufLayers(path).read()
                                                                      : read_config_layers(path);
  if (model.layers.empty()) {
    throw Error(ErrorCode::kUnsupported, path + ": architecture " + model.architecture +
                                             " has no attention layers with keys and values");
  }
  return model;
}

}  // namespace oscar::eval
