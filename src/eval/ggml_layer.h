// One attention layer with ggml's own KV cache, computed by its CPU backend: what ours is timed
// against.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "eval/synthetic_layer.h"

namespace oscar::eval {

// Lays the cache out as llama.cpp does: a row of all KV heads for each cell. eval::Host has loaded
// the CPU backend before. Not copyable.
class GgmlLayer {
 public:
  // Keys, values and queries are those of `layer`. Throws Error(kUnsupported).
  GgmlLayer(const SyntheticLayer& layer, ggml_type type, int num_threads);
  GgmlLayer(const GgmlLayer&) = delete;
  GgmlLayer& operator=(const GgmlLayer&) = delete;

  void attend();  // FLASH_ATTN_EXT of the queries over all cells
  void encode();  // SET_ROWS of all tokens' keys and values
  // [num_queries][num_q_heads][head_dim] of the last attend().
  std::vector<float> out() const;
  std::uint64_t cache_bytes() const;

 private:
  void compute(ggml_cgraph* graph);

  struct FreeContext {
    void operator()(ggml_context* context) const { ggml_free(context); }
  };
  struct FreeBackend {
    void operator()(ggml_backend* backend) const { ggml_backend_free(backend); }
  };
  struct FreeBuffer {
    void operator()(ggml_backend_buffer* buffer) const { ggml_backend_buffer_free(buffer); }
  };
  std::unique_ptr<ggml_context, FreeContext> context_;
  std::unique_ptr<ggml_backend, FreeBackend> backend_;
  std::unique_ptr<ggml_backend_buffer, FreeBuffer> buffer_;
  ggml_tensor *k_cache_ = nullptr, *v_cache_ = nullptr, *out_ = nullptr;
  ggml_cgraph *attend_graph_ = nullptr, *encode_graph_ = nullptr;
};

}  // namespace oscar::eval
