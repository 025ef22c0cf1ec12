// Graphs over caches of our device, without a model: what llama.cpp builds for an attention layer,
// node by node.
#pragma once

#include <ggml-backend-impl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace oscar::ggml_plugin {

struct BenchShape {
  std::int64_t kv_size = 128;
  std::int64_t num_streams = 1;
  std::vector<int> layers = {0};
  int num_q_heads = 4, num_kv_heads = 2, head_dim_k = 64, head_dim_v = 64;
};

// One ubatch of a layer. Rows are [token][head][dim]; tokens are stream by stream.
struct Step {
  std::vector<std::int64_t> rows;       // stream·kv_size + cell
  std::vector<std::int32_t> positions;  // handed over by a ROPE node; empty: no such node
  std::vector<float> q, k, v;
  std::int64_t num_streams = 1, first_stream = 0, num_kv = 0;
  std::vector<float> mask;  // [streams][queries][num_kv] 0 or −inf or a bias; empty: none
  float scale = 0.125f, max_bias = 0, soft_cap = 0;
  std::vector<float> sinks;  // [num_q_heads] or empty
  int num_reads = 1;         // attention nodes over the layer
};

class GraphBench {
 public:
  // Throws Error as oscar_configure does. A cache that is refused leaves ok() false.
  GraphBench(const std::string& kv_spec, const BenchShape& shape, ggml_type type = GGML_TYPE_F16);
  ~GraphBench();
  GraphBench(const GraphBench&) = delete;
  GraphBench& operator=(const GraphBench&) = delete;

  bool ok() const { return cache_buffer_ != nullptr; }
  const BenchShape& shape() const { return shape_; }
  ggml_tensor* keys(std::size_t layer = 0) { return keys_[layer]; }
  ggml_tensor* values(std::size_t layer = 0) { return values_[layer]; }
  ggml_backend_buffer_t buffer() { return cache_buffer_; }

  // Plans, allocates, computes. out: of the last attention node, [token][q_head][head_dim_v].
  // GGML_STATUS_ALLOC_FAILED when the device gives no memory for the result.
  ggml_status run(const Step& step, std::vector<float>* out, std::size_t layer = 0,
                  int num_threads = 2);
  // ROPE in place on the cached keys with one delta per cell.
  ggml_status shift(const std::vector<std::int32_t>& deltas, std::size_t layer = 0);
  // Any one node over the cache: planned and allocated only. false: refused.
  bool plans(ggml_tensor* (*make)(ggml_context*, GraphBench*));

  // State rows as llama.cpp saves them.
  std::vector<std::uint8_t> save(ggml_tensor* root, std::int64_t first_row, std::int64_t num_rows);
  void restore(ggml_tensor* root, std::int64_t first_row, const std::vector<std::uint8_t>& bytes);
  // Values that the cache stands for, F16 as floats, of rows [0, num_rows).
  std::vector<float> decoded(ggml_tensor* root, std::int64_t num_rows);

 private:
  struct Graph;
  ggml_tensor* rotated_keys(Graph* graph, const Step& step);
  // SET_ROWS of keys and values, FLASH_ATTN_EXT; inputs filled.
  std::vector<ggml_tensor*> build(Graph* graph, const Step& step, std::size_t layer);
  // The device serves a cache when it has seen all its layers, as it has after llama.cpp reserved
  // its graphs.
  void plan_all_layers(const Step& step);

  BenchShape shape_;
  ggml_backend_t backend_ = nullptr;
  ggml_context* cache_context_ = nullptr;
  ggml_backend_buffer_t cache_buffer_ = nullptr;
  std::vector<ggml_tensor*> keys_, values_;
  bool planned_ = false;
};

// A causal step over cells [0, first + count) of one stream, random q, k, v.
Step causal_step(const BenchShape& shape, std::int64_t first, std::int64_t count, unsigned seed);

// fp64 attention over keys and values given as [cell][head][dim]; masks, soft cap, slopes, sinks as
// ggml defines them.
std::vector<double> reference_attention(const BenchShape& shape, const Step& step,
                                        const std::vector<float>& keys,
                                        const std::vector<float>& values);

}  // namespace oscar::ggml_plugin
