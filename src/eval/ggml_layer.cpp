#include "eval/ggml_layer.h"

#include <cmath>

#include "base/error.h"

namespace oscar::eval {
namespace {

constexpr std::size_t kContextBytes = 1 << 20;  // of tensors' and graphs' descriptions

// Cells as FLASH_ATTN_EXT takes them: [head_dim][num_kv][num_kv_heads].
ggml_tensor* heads_of(ggml_context* context, ggml_tensor* cache, const SyntheticShape& shape) {
  ggml_tensor* view = ggml_view_3d(context, cache, shape.head_dim, shape.num_kv_heads,
                                   shape.num_tokens, ggml_row_size(cache->type, shape.head_dim),
                                   ggml_row_size(cache->type, cache->ne[0]), 0);
  return ggml_permute(context, view, 0, 2, 1, 3);
}

}  // namespace

GgmlLayer::GgmlLayer(const SyntheticLayer& layer, ggml_type type, int num_threads) {
  const SyntheticShape& shape = layer.shape();
  ggml_init_params params{};
  params.mem_size = kContextBytes;
  params.no_alloc = true;
  context_.reset(ggml_init(params));
  backend_.reset(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
  if (!context_ || !backend_) throw Error(ErrorCode::kUnsupported, "ggml has no CPU backend here");
  const auto set_threads =
      reinterpret_cast<ggml_backend_set_n_threads_t>(ggml_backend_reg_get_proc_address(
          ggml_backend_dev_backend_reg(ggml_backend_get_device(backend_.get())),
          "ggml_backend_set_n_threads"));
  if (set_threads != nullptr) set_threads(backend_.get(), num_threads);

  ggml_context* c = context_.get();
  const std::int64_t row = std::int64_t{shape.num_kv_heads} * shape.head_dim;
  k_cache_ = ggml_new_tensor_2d(c, type, row, shape.num_tokens);
  v_cache_ = ggml_new_tensor_2d(c, type, row, shape.num_tokens);
  ggml_tensor* keys = ggml_new_tensor_2d(c, GGML_TYPE_F32, row, shape.num_tokens);
  ggml_tensor* values = ggml_new_tensor_2d(c, GGML_TYPE_F32, row, shape.num_tokens);
  ggml_tensor* rows = ggml_new_tensor_1d(c, GGML_TYPE_I64, shape.num_tokens);
  ggml_tensor* q =
      ggml_new_tensor_3d(c, GGML_TYPE_F32, shape.head_dim, shape.num_q_heads, shape.num_queries);
  ggml_tensor* mask = ggml_new_tensor_2d(c, GGML_TYPE_F16, shape.num_tokens, shape.num_queries);
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  out_ = ggml_flash_attn_ext(c, ggml_permute(c, q, 0, 2, 1, 3), heads_of(c, k_cache_, shape),
                             heads_of(c, v_cache_, shape), mask, scale, 0.0f, 0.0f);
  attend_graph_ = ggml_new_graph(c);
  ggml_build_forward_expand(attend_graph_, out_);
  encode_graph_ = ggml_new_graph(c);
  ggml_build_forward_expand(encode_graph_, ggml_set_rows(c, k_cache_, keys, rows));
  ggml_build_forward_expand(encode_graph_, ggml_set_rows(c, v_cache_, values, rows));
  buffer_.reset(ggml_backend_alloc_ctx_tensors(c, backend_.get()));
  if (!buffer_) throw Error(ErrorCode::kUnsupported, "ggml could not allocate the layer");

  const auto fill = [](ggml_tensor* tensor, const std::vector<float>& data) {
    ggml_backend_tensor_set(tensor, data.data(), 0, data.size() * sizeof(float));
  };
  fill(keys, layer.keys());
  fill(values, layer.values());
  fill(q, layer.queries());
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < shape.num_tokens; ++i) indices.push_back(i);
  ggml_backend_tensor_set(rows, indices.data(), 0, indices.size() * sizeof(std::int64_t));
  std::vector<ggml_fp16_t> hidden;
  for (std::int64_t query = 0; query < shape.num_queries; ++query) {
    for (std::int64_t token = 0; token < shape.num_tokens; ++token) {
      const bool seen = token <= shape.num_tokens - shape.num_queries + query;
      hidden.push_back(ggml_fp32_to_fp16(seen ? 0.0f : -INFINITY));
    }
  }
  ggml_backend_tensor_set(mask, hidden.data(), 0, hidden.size() * sizeof(ggml_fp16_t));
  encode();
}

void GgmlLayer::compute(ggml_cgraph* graph) {
  if (ggml_backend_graph_compute(backend_.get(), graph) != GGML_STATUS_SUCCESS) {
    throw Error(ErrorCode::kUnsupported, "ggml could not compute the layer");
  }
}

void GgmlLayer::attend() { compute(attend_graph_); }
void GgmlLayer::encode() { compute(encode_graph_); }

std::vector<float> GgmlLayer::out() const {
  std::vector<float> result(static_cast<std::size_t>(ggml_nelements(out_)));
  ggml_backend_tensor_get(out_, result.data(), 0, ggml_nbytes(out_));
  return result;
}

std::uint64_t GgmlLayer::cache_bytes() const {
  return ggml_nbytes(k_cache_) + ggml_nbytes(v_cache_);
}

}  // namespace oscar::eval
