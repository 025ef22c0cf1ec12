// One attention layer of a model: its two cache tensors and what the graphs tell about it.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <optional>
#include <string>

#include "calibrate/collector.h"
#include "format/rope_spec.h"
#include "tensors.h"

namespace oscar::ggml_plugin {

class CacheGroup;
class CacheBuffer;

// Roots point here with tensor->extra. Filled before the first token, while llama.cpp reserves its
// graphs; constant afterwards.
struct CacheLayer {
  CacheBuffer* buffer = nullptr;
  std::string tag;
  int layer = 0;
  const ggml_tensor* roots[2] = {nullptr, nullptr};  // by Side

  calibrate::LayerShape shape;  // num_kv_heads 0: no attention was seen yet
  float attention_scale = 1.0f;
  bool keys_seen = false;        // a write of its keys was seen, so that `rope` says what is known
  std::optional<RopeSpec> rope;  // nothing: see rope_note
  std::string rope_note;
  int num_readers = 0;  // attention nodes of one graph that read it; above 1 for models whose
                        // layers share a cache
  // The fewest queries that a reserved graph had, 0 before any: llama.cpp reserves one with a token
  // per sequence.
  std::int64_t fewest_queries = 0;

  CacheGroup* group = nullptr;  // null until the buffer is prepared
  int ordinal = 0;              // in its group

  const ggml_tensor* root(Side side) const { return roots[static_cast<int>(side)]; }
  Side side_of(const ggml_tensor* root_tensor) const {
    return root_tensor == roots[0] ? Side::kKeys : Side::kValues;
  }
  std::int64_t row_values(Side side) const { return root(side)->ne[0]; }
  std::int64_t kv_size() const { return roots[0]->ne[1]; }
  std::int64_t num_streams() const { return roots[0]->ne[2]; }
};

}  // namespace oscar::ggml_plugin
