// The attention layers of a model, one by one, as far as the memory of its cache goes: from a GGUF
// file's header or from a Hugging Face config.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace oscar::eval {

struct AttentionLayer {
  int layer = 0;
  int num_q_heads = 0, num_kv_heads = 0, head_dim_k = 0, head_dim_v = 0;
  std::int64_t sliding_window = 0;  // tokens that it sees; 0: all
  bool operator==(const AttentionLayer&) const = default;
};

struct ModelLayers {
  std::string path;
  std::string architecture;  // llama.cpp's name, or the config's model_type
  bool is_gguf = false;
  std::int64_t context_length = 0;     // trained, in tokens; 0: not stated
  std::vector<AttentionLayer> layers;  // those with a cache of their own, ascending
};

// A file that begins with "GGUF" is one; anything else has to be a config.json. Throws Error naming
// the file, the key, its value and what would be right; Error(kUnsupported) names a kind of model
// whose cache is not plain keys and values (latent attention, recurrent layers), or whose sliding
// windows follow a pattern that is not known here.
ModelLayers read_model_layers(const std::string& path);

// How often a layer attends everything, where the file does not say. llama.cpp and the
// configurations share these rules; the names are llama.cpp's.
struct WindowPattern {
  int period = 0;           // 0: unknown; 1: every layer attends everything
  bool full_first = false;  // of each period the first layer attends everything, not the last
  std::int64_t window = 0;  // where the file names none; 0: then there is none
  bool has_window(int layer) const {
    return full_first ? layer % period != 0 : layer % period < period - 1;
  }
};
WindowPattern window_pattern(const std::string& architecture);

}  // namespace oscar::eval
