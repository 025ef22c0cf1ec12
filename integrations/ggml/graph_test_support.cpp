#include "graph_test_support.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "buffer_type.h"
#include "config.h"
#include "device.h"

namespace oscar::ggml_plugin {
namespace {

constexpr std::size_t kContextBytes = 1 << 20;
constexpr float kRopeBase = 10000.0f;

ggml_context* new_context() { return ggml_init({kContextBytes, nullptr, true}); }

void no_dependency(void*, ggml_tensor*, ggml_tensor*) {}

}  // namespace

// Inputs in host memory, nodes for our device, the results in its buffer.
struct GraphBench::Graph {
  Graph() : inputs(new_context()), nodes(new_context()), graph(nullptr) {}
  ~Graph() {
    if (input_buffer != nullptr) ggml_backend_buffer_free(input_buffer);
    if (node_buffer != nullptr) ggml_backend_buffer_free(node_buffer);
    ggml_free(inputs);
    ggml_free(nodes);
    ggml_free(graph_context);
  }

  ggml_tensor* input(ggml_type type, std::vector<std::int64_t> shape) {
    shape.resize(4, 1);
    return ggml_new_tensor_4d(inputs, type, shape[0], shape[1], shape[2], shape[3]);
  }
  void allocate_inputs() {
    input_buffer = ggml_backend_alloc_ctx_tensors_from_buft(inputs, ggml_backend_cpu_buffer_type());
  }
  // As llama.cpp's scheduler does: tell the backend the graph, then ask for memory.
  bool plan(ggml_backend_t backend, const std::vector<ggml_tensor*>& list) {
    observe(backend, list);
    bool needs_memory = false;
    for (ggml_tensor* node : list) needs_memory = needs_memory || node->view_src == nullptr;
    if (!needs_memory) return true;
    node_buffer = ggml_backend_alloc_ctx_tensors_from_buft(nodes, buffer_type());
    return node_buffer != nullptr;
  }
  void observe(ggml_backend_t backend, const std::vector<ggml_tensor*>& list) {
    graph_context = ggml_init({ggml_graph_overhead() + kContextBytes, nullptr, false});
    graph = ggml_new_graph(graph_context);
    for (ggml_tensor* node : list) ggml_graph_add_node(graph, node);
    ggml_backend_graph_optimize_params params = {no_dependency, nullptr};
    backend->iface.graph_optimize(backend, graph, &params);
  }

  ggml_context *inputs, *nodes, *graph_context = nullptr;
  ggml_cgraph* graph;
  ggml_backend_buffer_t input_buffer = nullptr, node_buffer = nullptr;
};

GraphBench::GraphBench(const std::string& kv_spec, const BenchShape& shape, ggml_type type)
    : shape_(shape) {
  configure(kv_spec);
  ggml_backend_dev_t device = ggml_backend_reg_dev_get(registry(), 0);
  backend_ = device->iface.init_backend(device, nullptr);
  cache_context_ = new_context();
  for (const int layer : shape.layers) {
    keys_.push_back(ggml_new_tensor_3d(cache_context_, type, shape.num_kv_heads * shape.head_dim_k,
                                       shape.kv_size, shape.num_streams));
    values_.push_back(ggml_new_tensor_3d(cache_context_, type,
                                         shape.num_kv_heads * shape.head_dim_v, shape.kv_size,
                                         shape.num_streams));
    ggml_format_name(keys_.back(), "cache_k_l%d", layer);
    ggml_format_name(values_.back(), "cache_v_l%d", layer);
  }
  cache_buffer_ = ggml_backend_alloc_ctx_tensors_from_buft(cache_context_, buffer_type());
}

GraphBench::~GraphBench() {
  if (cache_buffer_ != nullptr) ggml_backend_buffer_free(cache_buffer_);
  ggml_free(cache_context_);
  backend_->iface.free(backend_);
}

// A ROPE node that carries positions; its data are the keys as they come, which is what the cache
// sees.
ggml_tensor* GraphBench::rotated_keys(Graph* graph, const Step& step) {
  const auto num_tokens = std::ssize(step.rows);
  ggml_tensor* keys =
      graph->input(GGML_TYPE_F32, {shape_.head_dim_k, shape_.num_kv_heads, num_tokens});
  if (step.positions.empty()) return keys;
  ggml_tensor* positions = graph->input(GGML_TYPE_I32, {num_tokens});
  return ggml_rope_ext(graph->inputs, keys, positions, nullptr, shape_.head_dim_k,
                       GGML_ROPE_TYPE_NEOX, 0, kRopeBase, 1, 0, 1, 0, 0);
}

std::vector<ggml_tensor*> GraphBench::build(Graph* graph, const Step& step, std::size_t layer) {
  Graph& g = *graph;
  const auto num_tokens = std::ssize(step.rows);
  const std::int64_t per_stream = num_tokens / step.num_streams;
  ggml_tensor* k = rotated_keys(&g, step);
  ggml_tensor* v = g.input(GGML_TYPE_F32, {shape_.head_dim_v, shape_.num_kv_heads, num_tokens});
  ggml_tensor* q =
      g.input(GGML_TYPE_F32, {shape_.head_dim_k, shape_.num_q_heads, per_stream, step.num_streams});
  ggml_tensor* indices = g.input(GGML_TYPE_I64, {num_tokens});
  ggml_tensor* mask = step.mask.empty()
                          ? nullptr
                          : g.input(GGML_TYPE_F16, {step.num_kv, per_stream, 1, step.num_streams});
  ggml_tensor* sinks = step.sinks.empty() ? nullptr : g.input(GGML_TYPE_F32, {shape_.num_q_heads});
  g.allocate_inputs();
  std::memcpy(k->data, step.k.data(), ggml_nbytes(k));
  std::memcpy(v->data, step.v.data(), ggml_nbytes(v));
  std::memcpy(q->data, step.q.data(), ggml_nbytes(q));
  std::memcpy(indices->data, step.rows.data(), ggml_nbytes(indices));
  if (k->op == GGML_OP_ROPE)
    std::memcpy(k->src[1]->data, step.positions.data(), ggml_nbytes(k->src[1]));
  if (mask != nullptr)
    ggml_fp32_to_fp16_row(step.mask.data(), static_cast<ggml_fp16_t*>(mask->data),
                          ggml_nelements(mask));
  if (sinks != nullptr) std::memcpy(sinks->data, step.sinks.data(), ggml_nbytes(sinks));

  std::vector<ggml_tensor*> nodes;
  const auto write = [&](ggml_tensor* root, ggml_tensor* rows) {
    ggml_tensor* flat = ggml_view_2d(g.nodes, rows, root->ne[0], num_tokens, rows->nb[2], 0);
    ggml_tensor* all = ggml_reshape_2d(g.nodes, root, root->ne[0], root->ne[1] * root->ne[2]);
    nodes.push_back(ggml_set_rows(g.nodes, all, flat, indices));
  };
  write(keys_[layer], k);
  write(values_[layer], v);
  const auto read = [&](ggml_tensor* root, int head_dim) {
    ggml_tensor* view =
        ggml_view_4d(g.nodes, root, head_dim, shape_.num_kv_heads, step.num_kv, step.num_streams,
                     2 * head_dim, root->nb[1], root->nb[2], root->nb[2] * step.first_stream);
    return ggml_permute(g.nodes, view, 0, 2, 1, 3);
  };
  for (int i = 0; i < step.num_reads; ++i) {
    ggml_tensor* attention = ggml_flash_attn_ext(
        g.nodes, ggml_permute(g.nodes, q, 0, 2, 1, 3), read(keys_[layer], shape_.head_dim_k),
        read(values_[layer], shape_.head_dim_v), mask, step.scale, step.max_bias, step.soft_cap);
    ggml_flash_attn_ext_add_sinks(attention, sinks);
    nodes.push_back(attention);
  }
  return nodes;
}

void GraphBench::plan_all_layers(const Step& step) {
  if (std::exchange(planned_, true)) return;
  for (std::size_t layer = 0; layer < keys_.size(); ++layer) {
    Graph g;
    g.observe(backend_, build(&g, step, layer));
  }
}

ggml_status GraphBench::run(const Step& step, std::vector<float>* out, std::size_t layer,
                            int num_threads) {
  plan_all_layers(step);
  Graph g;
  const std::vector<ggml_tensor*> nodes = build(&g, step, layer);
  if (!g.plan(backend_, nodes)) return GGML_STATUS_ALLOC_FAILED;
  auto set_threads = reinterpret_cast<void (*)(ggml_backend_t, int)>(
      ggml_backend_reg_get_proc_address(registry(), "ggml_backend_set_n_threads"));
  set_threads(backend_, num_threads);
  const ggml_status status = backend_->iface.graph_compute(backend_, g.graph);
  if (status == GGML_STATUS_SUCCESS && out != nullptr) {
    const auto* data = static_cast<const float*>(nodes.back()->data);
    out->assign(data, data + ggml_nelements(nodes.back()));
  }
  return status;
}

ggml_status GraphBench::shift(const std::vector<std::int32_t>& deltas, std::size_t layer) {
  Graph g;
  ggml_tensor* delta = g.input(GGML_TYPE_I32, {std::ssize(deltas)});
  g.allocate_inputs();
  std::memcpy(delta->data, deltas.data(), ggml_nbytes(delta));
  ggml_tensor* root = keys_[layer];
  ggml_tensor* view =
      ggml_view_3d(g.nodes, root, shape_.head_dim_k, shape_.num_kv_heads, root->ne[1] * root->ne[2],
                   2 * shape_.head_dim_k, root->nb[1], 0);
  ggml_tensor* node = ggml_rope_ext_inplace(g.nodes, view, delta, nullptr, shape_.head_dim_k,
                                            GGML_ROPE_TYPE_NEOX, 0, kRopeBase, 1, 0, 1, 0, 0);
  if (!g.plan(backend_, {node})) return GGML_STATUS_ALLOC_FAILED;
  const ggml_status status = backend_->iface.graph_compute(backend_, g.graph);
  return status;
}

bool GraphBench::plans(ggml_tensor* (*make)(ggml_context*, GraphBench*)) {
  Graph g;
  const bool planned = g.plan(backend_, {make(g.nodes, this)});
  return planned;
}

std::vector<std::uint8_t> GraphBench::save(ggml_tensor* root, std::int64_t first_row,
                                           std::int64_t num_rows) {
  std::vector<std::uint8_t> bytes(num_rows * root->nb[1]);
  ggml_backend_tensor_get(root, bytes.data(), first_row * root->nb[1], bytes.size());
  return bytes;
}

void GraphBench::restore(ggml_tensor* root, std::int64_t first_row,
                         const std::vector<std::uint8_t>& bytes) {
  ggml_backend_tensor_set(root, bytes.data(), first_row * root->nb[1], bytes.size());
}

std::vector<float> GraphBench::decoded(ggml_tensor* root, std::int64_t num_rows) {
  Graph g;
  ggml_tensor* flat = ggml_view_2d(g.nodes, root, root->ne[0], num_rows, root->nb[1], 0);
  ggml_tensor* view = ggml_permute(g.nodes, flat, 0, 1, 2, 3);
  std::vector<ggml_fp16_t> halves(root->ne[0] * num_rows);
  ggml_backend_tensor_get(view, halves.data(), 0, halves.size() * sizeof(ggml_fp16_t));
  std::vector<float> values(halves.size());
  ggml_fp16_to_fp32_row(halves.data(), values.data(), std::ssize(values));
  return values;
}

Step causal_step(const BenchShape& shape, std::int64_t first, std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const auto fill = [&](std::int64_t size) {
    std::vector<float> values(size);
    for (float& value : values) value = normal(random);
    return values;
  };
  Step step;
  for (std::int64_t i = 0; i < count; ++i) {
    step.rows.push_back(first + i);
    step.positions.push_back(static_cast<std::int32_t>(first + i));
  }
  step.q = fill(count * shape.num_q_heads * shape.head_dim_k);
  step.k = fill(count * shape.num_kv_heads * shape.head_dim_k);
  step.v = fill(count * shape.num_kv_heads * shape.head_dim_v);
  step.num_kv = shape.kv_size;
  step.mask.assign(count * step.num_kv, -std::numeric_limits<float>::infinity());
  for (std::int64_t query = 0; query < count; ++query) {
    std::fill_n(step.mask.begin() + query * step.num_kv, first + query + 1, 0.0f);
  }
  return step;
}

std::vector<double> reference_attention(const BenchShape& shape, const Step& step,
                                        const std::vector<float>& keys,
                                        const std::vector<float>& values) {
  const std::int64_t num_queries = std::ssize(step.rows);
  const int group = shape.num_q_heads / shape.num_kv_heads;
  const int floor_log2 = 1 << static_cast<int>(std::floor(std::log2(shape.num_q_heads)));
  std::vector<double> out(num_queries * shape.num_q_heads * shape.head_dim_v, 0.0);
  for (std::int64_t query = 0; query < num_queries; ++query) {
    for (int head = 0; head < shape.num_q_heads; ++head) {
      double slope = 1;
      if (step.max_bias > 0) {
        slope = head < floor_log2 ? std::pow(2.0, -double{step.max_bias} * (head + 1) / floor_log2)
                                  : std::pow(2.0, -double{step.max_bias} / 2 *
                                                      (2 * (head - floor_log2) + 1) / floor_log2);
      }
      std::vector<double> weights(step.num_kv, 0.0);
      double sum = step.sinks.empty() ? 0 : std::exp(step.sinks[head]);
      for (std::int64_t cell = 0; cell < step.num_kv; ++cell) {
        const double bias = step.mask.empty() ? 0 : step.mask[query * step.num_kv + cell];
        if (std::isinf(bias)) continue;
        double logit = 0;
        for (int d = 0; d < shape.head_dim_k; ++d) {
          logit += double{step.q[(query * shape.num_q_heads + head) * shape.head_dim_k + d]} *
                   keys[(cell * shape.num_kv_heads + head / group) * shape.head_dim_k + d];
        }
        logit *= step.scale;
        if (step.soft_cap > 0) logit = step.soft_cap * std::tanh(logit / step.soft_cap);
        weights[cell] = std::exp(logit + slope * bias);
        sum += weights[cell];
      }
      for (std::int64_t cell = 0; cell < step.num_kv; ++cell) {
        for (int d = 0; d < shape.head_dim_v; ++d) {
          if (weights[cell] == 0) continue;
          out[(query * shape.num_q_heads + head) * shape.head_dim_v + d] +=
              weights[cell] / sum *
              values[(cell * shape.num_kv_heads + head / group) * shape.head_dim_v + d];
        }
      }
    }
  }
  return out;
}

}  // namespace oscar::ggml_plugin
