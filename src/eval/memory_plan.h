// What a KV cache will take, before anything is loaded: the bytes that llama.cpp's own types and
// our plugin reserve for a model and a context.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "eval/model_layers.h"
#include "eval/workbench.h"

namespace oscar::eval {

// As llama.cpp's context has them. Its programs round the context up to kContextMultiple.
inline constexpr std::int64_t kContextMultiple = 256;
struct PlanOptions {
  std::int64_t context_tokens = 4096;  // of all sequences together
  int num_sequences = 1;               // slots of a server
  bool unified = true;  // sequences share the cells (llama-server's default), or split them
  std::int64_t ubatch_tokens = 512;     // -ub: cells that a sliding-window cache has beyond windows
  bool full_sliding_cache = false;      // --swa-full
  std::optional<int> copied_sequences;  // OSCAR_COPIES
};

// Layers that share their cells and the shape of their rows.
struct PlanGroup {
  std::vector<int> layers;
  int num_kv_heads = 0, head_dim_k = 0, head_dim_v = 0;
  std::int64_t sliding_window = 0;              // 0: all tokens
  std::int64_t num_cells = 0, num_streams = 1;  // of each stream
  double k_bits = 0, v_bits = 0;                // a stored value, scales included, copies not
  std::int64_t num_copies = 0;                  // exact tokens
  std::uint64_t bytes_per_token = 0;            // of all its layers, without copies
  std::uint64_t code_bytes = 0, copy_bytes = 0;
  std::uint64_t bytes() const { return code_bytes + copy_bytes; }
};

struct KvPlan {
  std::string kv, method;
  int sink_tokens = 0, recent_tokens = 0;  // 0 for llama.cpp's own types
  std::vector<PlanGroup> groups;
  std::int64_t context_tokens = 0;  // as rounded
  int num_sequences = 1;
  std::uint64_t bytes() const;
  std::uint64_t bytes_per_token() const;     // that one more token takes, sliding windows filled
  std::uint64_t bytes_per_sequence() const;  // the share of one sequence, its copies included
  double bits_per_value() const;  // of all that is reserved, over the values of all cells
};

// Throws Error where the cache cannot hold the model, the artefact is of another shape, or an
// option does not fit. kv: as choose_kv gives it; methods that need calibration need none here.
KvPlan plan_memory(const ModelLayers& model, const KvChoice& kv, const PlanOptions& options);

// The longest context, a multiple of kContextMultiple and at most the model's, whose cache takes at
// most `bytes`; 0: none does. options.context_tokens is not looked at.
std::int64_t longest_context(const ModelLayers& model, const KvChoice& kv, PlanOptions options,
                             std::uint64_t bytes);

}  // namespace oscar::eval
