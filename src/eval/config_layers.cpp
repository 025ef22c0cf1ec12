#include "eval/config_layers.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/text.h"
#include "format/strict_json.h"

namespace oscar::eval {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxLayers = 1024, kMaxWidth = 1 << 20;
constexpr std::int64_t kMaxConfigHeads = 4096;  // as an artefact's
constexpr std::size_t kShownBytes = 4, kFoundBytes = 40;

// model_type: llama.cpp's name, where the rule of the windows hangs on it.
const std::map<std::string, std::string> kLlamaNames = {
    {"gemma3_text", "gemma3"}, {"gemma3n_text", "gemma3n"}, {"gpt_oss", "gpt-oss"},
    {"mistral", "llama"},      {"mixtral", "llama"},        {"olmo3", "olmo2"},
    {"qwen2_moe", "qwen2moe"}, {"qwen3_moe", "qwen3moe"},   {"llama4_text", "llama4"},
};

class Config {
 public:
  Config(const std::string& path, const Json& root) : path_(path), root_(root) {
    // Models that also see or hear keep the language model's shape in a part of its own.
    if (is_there(root, "text_config")) {
      expect(root["text_config"].is_object(), "'text_config'", root["text_config"], "an object");
      part_ = "text_config.";
      fields_ = &root["text_config"];
    } else {
      fields_ = &root;
    }
  }

  [[noreturn]] void fail(ErrorCode code, const std::string& what) const {
    throw Error(code, path_ + ": " + what);
  }

  bool has(const std::string& name) const {
    return fields_->contains(name) && !(*fields_)[name].is_null();
  }
  const Json& at(const std::string& name) const { return (*fields_)[name]; }
  std::string quoted(const std::string& name) const { return "'" + part_ + name + "'"; }

  // The first of `names` that is there, in [low, high].
  std::optional<std::int64_t> integer(std::initializer_list<const char*> names, std::int64_t low,
                                      std::int64_t high) const {
    for (const char* name : names) {
      if (!has(name)) continue;
      if (!at(name).is_number_integer() || at(name) < low || at(name) > high) {
        fail(ErrorCode::kCorrupt, quoted(name) + " is " + in_quotes(at(name).dump()) +
                                      "; it must be a whole number from " + std::to_string(low) +
                                      " to " + std::to_string(high));
      }
      return at(name).get<std::int64_t>();
    }
    return std::nullopt;
  }
  int needed(std::initializer_list<const char*> names, std::int64_t high) const {
    if (const auto value = integer(names, 1, high)) return static_cast<int>(*value);
    fail(ErrorCode::kCorrupt,
         "has no " + quoted(*names.begin()) + "; is it the config.json of a language model?");
  }
  bool flag(const char* name, bool fallback) const {
    if (!has(name)) return fallback;
    expect(at(name).is_boolean(), quoted(name), at(name), "true or false");
    return at(name).get<bool>();
  }
  std::string text(const char* name) const {
    if (!has(name)) return "";
    expect(at(name).is_string(), quoted(name), at(name), "a text");
    return at(name).get<std::string>();
  }
  const Json& list(const char* name) const {
    expect(at(name).is_array(), quoted(name), at(name), "a list");
    return at(name);
  }
  bool root_flag(const std::string& name) const {
    if (!is_there(root_, name)) return false;
    expect(root_[name].is_boolean(), "'" + name + "'", root_[name], "true or false");
    return root_[name].get<bool>();
  }
  // The classes that `architectures` names, where none of them generates text; else empty. A class
  // is a language model by its name: …ForCausalLM, …LMHeadModel, …ForConditionalGeneration.
  std::string architectures_without_cache() const {
    if (!is_there(root_, "architectures")) return "";
    const Json& entries = root_["architectures"];
    expect(entries.is_array(), "'architectures'", entries, "a list of names");
    std::string names;
    for (const Json& entry : entries) {
      expect(entry.is_string(), "'architectures'", entries, "a list of names");
      const auto name = entry.get<std::string>();
      for (const char* part : {"CausalLM", "LMHead", "ConditionalGeneration"}) {
        if (name.find(part) != std::string::npos) return "";
      }
      // Of other names, as a decoder's base class, the configuration says no less of the cache.
      for (const char* part :
           {"Masked", "Classification", "QuestionAnswering", "Vision", "CLIP", "BertModel"}) {
        if (name.find(part) != std::string::npos) names += (names.empty() ? "" : ", ") + name;
      }
    }
    return names.empty() ? "" : in_quotes(names);
  }

 private:
  static bool is_there(const Json& object, const std::string& name) {
    return object.contains(name) && !object[name].is_null();
  }
  void expect(bool holds, const std::string& name, const Json& found, const char* what) const {
    if (holds) return;
    fail(ErrorCode::kCorrupt,
         name + " is " + in_quotes(found.dump().substr(0, kFoundBytes)) + "; it must be " + what);
  }

  std::string path_, part_;
  const Json& root_;
  const Json* fields_;
};

void refuse_other_memories(const Config& config, const std::string& architecture) {
  const auto refuse = [&](const std::string& why) {
    config.fail(ErrorCode::kUnsupported,
                "model_type " + in_quotes(architecture) + " " + why + ": not supported");
  };
  if (config.has("kv_lora_rank")) refuse("keeps a latent vector (MLA), not keys and values");
  for (const char* name :
       {"ssm_cfg", "state_size", "conv_kernel", "mamba_d_state", "mamba_d_conv", "ssm_state_size",
        "linear_conv_kernel_dim", "linear_num_key_heads", "full_attention_interval", "conv_L_cache",
        "attn_layer_period", "attn_layer_indices", "hybrid_override_pattern", "block_types",
        "lru_width", "rescale_every"}) {
    if (config.has(name)) {
      refuse("has recurrent layers (" + config.quoted(name) +
             "), whose state is not keys and values");
    }
  }
  if (config.has("index_head_dim")) refuse("keeps an indexer's cache beside its keys and values");
  if (config.root_flag("is_encoder_decoder")) refuse("is an encoder with a decoder");
  if (const std::string names = config.architectures_without_cache(); !names.empty()) {
    refuse("is a " + names + ", which keeps no keys and values between tokens");
  }
}

// Query heads share KV heads in ways that have names of their own: Falcon's first form and
// GPTBigCode (multi_query: one KV head), ChatGLM (multi_query_group_num).
int kv_heads(const Config& config, int num_q_heads) {
  if (config.flag("multi_query_attention", false)) {
    return config.needed({"multi_query_group_num"}, kMaxConfigHeads);
  }
  if (config.flag("multi_query", false) && !config.flag("new_decoder_architecture", false)) {
    return 1;
  }
  return static_cast<int>(
      config.integer({"num_key_value_heads", "num_kv_heads"}, 1, kMaxConfigHeads)
          .value_or(num_q_heads));
}

// Tokens that each layer sees; 0: all.
std::vector<std::int64_t> windows(const Config& config, const std::string& architecture,
                                  int num_layers) {
  std::vector<std::int64_t> result(static_cast<std::size_t>(num_layers), 0);
  const auto named = kLlamaNames.find(architecture);
  WindowPattern rule = window_pattern(named == kLlamaNames.end() ? architecture : named->second);
  const std::int64_t window =
      config.integer({"sliding_window", "attention_chunk_size"}, 0, INT32_MAX)
          .value_or(rule.window);
  if (config.has("layer_types")) {
    const Json& types = config.list("layer_types");
    if (types.size() != result.size()) {
      config.fail(ErrorCode::kCorrupt, config.quoted("layer_types") + " has " +
                                           std::to_string(types.size()) + " entries for " +
                                           std::to_string(num_layers) + " layers");
    }
    for (std::size_t layer = 0; layer < result.size(); ++layer) {
      const std::string type = types[layer].is_string() ? types[layer].get<std::string>() : "";
      if (type == "full_attention") continue;
      if (type != "sliding_attention" && type != "chunked_attention") {
        config.fail(ErrorCode::kUnsupported,
                    "layer " + std::to_string(layer) + " is " + in_quotes(types[layer].dump()) +
                        ", not full_attention, sliding_attention or chunked_attention: not "
                        "supported");
      }
      if (rule.period != 1) result[layer] = window;
    }
    return result;
  }
  if (window == 0 || rule.period == 1 || !config.flag("use_sliding_window", true)) return result;
  if (const auto period = config.integer({"sliding_window_pattern"}, 1, kMaxLayers)) {
    rule.period = static_cast<int>(*period);
  }
  if (rule.period == 0) {
    config.fail(ErrorCode::kUnsupported,
                "model_type " + in_quotes(architecture) + " has sliding windows of " +
                    std::to_string(window) +
                    " tokens, but neither 'layer_types' nor a pattern that is known here");
  }
  for (int layer = 0; layer < num_layers; ++layer) {
    if (rule.has_window(layer)) result[static_cast<std::size_t>(layer)] = window;
  }
  return result;
}

}  // namespace

ModelLayers read_config_layers(const std::string& path) {
  const MappedFile file(path);
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()),
                               file.bytes().size());
  const std::size_t first = bytes.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || bytes[first] != '{') {
    throw Error(ErrorCode::kCorrupt,
                path + ": is neither a GGUF file nor a config.json: begins with " +
                    in_quotes(bytes.substr(0, kShownBytes)) + ", not 'GGUF' or '{'");
  }
  const Json root = parse_strict_json(bytes, path);
  const Config config(path, root);
  ModelLayers model;
  model.path = path;
  model.architecture = config.text("model_type");
  refuse_other_memories(config, model.architecture);
  const int num_layers = config.needed({"num_hidden_layers", "n_layer", "num_layers"}, kMaxLayers);
  const int num_q_heads =
      config.needed({"num_attention_heads", "n_head", "num_heads"}, kMaxConfigHeads);
  const int width = config.needed({"hidden_size", "n_embd", "d_model"}, kMaxWidth);
  const int num_kv_heads = kv_heads(config, num_q_heads);
  const auto head_dim = static_cast<int>(config.integer({"head_dim", "kv_channels"}, 1, kMaxWidth)
                                             .value_or(std::max(width / num_q_heads, 1)));
  const auto full_head_dim =
      static_cast<int>(config.integer({"global_head_dim"}, 1, kMaxWidth).value_or(head_dim));
  const auto full_kv_heads = static_cast<int>(
      config.integer({"num_global_key_value_heads"}, 1, kMaxConfigHeads).value_or(num_kv_heads));
  const std::int64_t shared = config.integer({"num_kv_shared_layers"}, 0, num_layers).value_or(0);
  model.context_length =
      config
          .integer({"max_position_embeddings", "n_positions", "n_ctx", "seq_length"}, 0, INT32_MAX)
          .value_or(0);
  const std::vector<std::int64_t> sliding = windows(config, model.architecture, num_layers);
  for (int layer = 0; layer < num_layers - shared; ++layer) {
    const std::int64_t window = sliding[static_cast<std::size_t>(layer)];
    const int dim = window > 0 ? head_dim : full_head_dim;
    model.layers.push_back(
        {layer, num_q_heads, window > 0 ? num_kv_heads : full_kv_heads, dim, dim, window});
  }
  return model;
}

}  // namespace oscar::eval
