#include "cache/layer_codec.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "base/bf16.h"
#include "base/error.h"
#include "base/parallel.h"
#include "methods/definition.h"

namespace oscar::cache {
namespace {

// Tokens that one task gathers, transforms and encodes together: two blocks of rows fit in the L1
// cache at head_dim 128.
constexpr int kBlockTokens = 16;

// The largest legal group that is no larger than the one asked for: divides head_dim, a multiple
// of 16.
int clamp_group(int group_size, int head_dim) {
  int group = std::min(group_size, head_dim) / kHeadDimMultiple * kHeadDimMultiple;
  while (group > kHeadDimMultiple && head_dim % group != 0) group -= kHeadDimMultiple;
  return group;
}

PlaneLayout layout_of(QuantSpec quant, int head_dim) {
  quant.group_size = clamp_group(quant.group_size, head_dim);
  const PlaneLayout layout{head_dim, quant};
  layout.validate();
  return layout;
}

bool is_identity(const std::vector<float>& matrices, int num_matrices, int dim) {
  for (int m = 0; m < num_matrices; ++m) {
    const float* matrix = matrices.data() + std::int64_t{m} * dim * dim;
    for (int i = 0; i < dim; ++i) {
      for (int j = 0; j < dim; ++j) {
        if (matrix[std::int64_t{i} * dim + j] != (i == j ? 1.0f : 0.0f)) return false;
      }
    }
  }
  return true;
}

// Σ row[i]·matrix[i·stride]: with a column of a matrix, or, with stride 1, a row.
double dot(const float* row, const float* matrix, std::int64_t stride, int size) {
  double sum = 0;
  for (int i = 0; i < size; ++i) sum += double{row[i]} * matrix[i * stride];
  return sum;
}

std::vector<float> transposed(const std::vector<float>& matrices, int num_matrices, int dim) {
  std::vector<float> result(matrices.size());
  for (int m = 0; m < num_matrices; ++m) {
    const std::int64_t base = std::int64_t{m} * dim * dim;
    for (std::int64_t i = 0; i < dim; ++i) {
      for (std::int64_t j = 0; j < dim; ++j)
        result[base + j * dim + i] = matrices[base + i * dim + j];
    }
  }
  return result;
}

void check_size(const std::vector<float>& values, std::int64_t right, const char* name, int layer) {
  if (values.empty() || std::ssize(values) == right) return;
  throw Error(ErrorCode::kMismatch, "layer " + std::to_string(layer) + ": " + name + " has " +
                                        std::to_string(values.size()) +
                                        " values; its shape needs " + std::to_string(right));
}

bool is_zero(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return value == 0.0f; });
}

const float* matrix_of(const std::vector<float>& matrices, int kv_head, int dim) {
  return matrices.empty() ? nullptr : matrices.data() + std::int64_t{kv_head} * dim * dim;
}

const float* row_of(const std::vector<float>& rows, int kv_head, int dim) {
  return rows.empty() ? nullptr : rows.data() + std::int64_t{kv_head} * dim;
}

}  // namespace

bool store_exact_row(const float* row, int head_dim, bf16_t* dst) noexcept {
  bool finite = true;
  for (int i = 0; i < head_dim; ++i) {
    dst[i] = bf16_from_float(row[i]);
    finite &= (dst[i] & 0x7f80u) != 0x7f80u;
  }
  if (!finite) std::fill_n(dst, head_dim, bf16_t{0});
  return finite;
}

void SideCoder::rotate(const float* raw, std::int64_t num_rows, float* rotated) const {
  const int heads = coder->num_kv_heads(), dim = coder->head_dim();
  const std::int64_t stride = coder->row_values();
  if (transform == nullptr) {
    std::copy_n(raw, num_rows * stride, rotated);
    return;
  }
  for (int head = 0; head < heads; ++head) {
    kernels->transform_rows({.x = raw + std::int64_t{head} * dim,
                             .matrix = transform + std::int64_t{head} * dim * dim,
                             .y = rotated + std::int64_t{head} * dim,
                             .num_rows = num_rows,
                             .x_stride = stride,
                             .y_stride = stride,
                             .head_dim = dim});
  }
}

void SideCoder::rotate_back(const float* rotated, float* raw) const {
  const int dim = coder->head_dim();
  for (int head = 0; head < coder->num_kv_heads(); ++head) {
    const float* const row = rotated + std::int64_t{head} * dim;
    for (int i = 0; i < dim; ++i) {
      raw[std::int64_t{head} * dim + i] =
          transform == nullptr
              ? row[i]
              : static_cast<float>(
                    dot(row, transform + (std::int64_t{head} * dim + i) * dim, 1, dim));
    }
  }
}

SideCoder LayerCodec::key_side() const {
  return {key_coder_.get(), k_transform_.empty() ? nullptr : k_transform_.data(), kernels_};
}
SideCoder LayerCodec::value_side() const {
  return {value_coder_.get(), v_transform_.empty() ? nullptr : v_transform_.data(), kernels_};
}

struct LayerCodec::Side {
  const PlaneLayout& layout;
  const std::vector<float>& transform;
  const std::vector<float>& mean;
  const std::vector<float>& clip;
  const RopeTable* rope;  // rotates the mean to the token's position; null: the mean itself
};

LayerCodec::LayerCodec(const Artefact& artefact, const ArtefactLayer& layer,
                       std::shared_ptr<const RopeTable> rope, const kernels::KernelSet& kernels)
    : num_kv_heads_(layer.num_kv_heads),
      k_layout_(layout_of(key_quant(artefact, layer), layer.head_dim_k)),
      v_layout_(layout_of(value_quant(artefact, layer), layer.head_dim_v)),
      rope_(std::move(rope)),
      kernels_(&kernels) {
  const int heads = num_kv_heads_;
  if (heads < 1) {
    throw Error(ErrorCode::kInvalidArgument, "layer " + std::to_string(layer.layer) + " has " +
                                                 std::to_string(heads) +
                                                 " KV heads; at least 1 is needed");
  }
  const std::int64_t dk = layer.head_dim_k, dv = layer.head_dim_v;
  check_size(layer.k_transform, heads * dk * dk, "k_transform", layer.layer);
  check_size(layer.k_transform_inverse_transposed, heads * dk * dk,
             "k_transform_inverse_transposed", layer.layer);
  check_size(layer.v_transform, heads * dv * dv, "v_transform", layer.layer);
  check_size(layer.v_inverse, heads * dv * dv, "v_inverse", layer.layer);
  check_size(layer.k_mean, heads * dk, "k_mean", layer.layer);
  check_size(layer.v_mean, heads * dv, "v_mean", layer.layer);
  if (rope_ != nullptr && rope_->spec().rotated_dims() > layer.head_dim_k) {
    throw Error(ErrorCode::kMismatch, "layer " + std::to_string(layer.layer) + ": RoPE rotates " +
                                          std::to_string(rope_->spec().rotated_dims()) +
                                          " channels; head_dim_k is " + std::to_string(dk));
  }

  if (layer.rope < 0) rope_ = nullptr;
  const methods::Definition& definition = methods::definition(artefact.method);
  if (definition.needs_rope && rope_ == nullptr) {
    throw Error(ErrorCode::kUnsupported, "layer " + std::to_string(layer.layer) + ": " +
                                             method_name(artefact.method) +
                                             " stores keys before RoPE, and this layer's is not "
                                             "known");
  }
  key_coder_ = methods::make_key_coder(artefact, layer, rope_);
  value_coder_ = methods::make_value_coder(artefact, layer);
  if (layer.rope >= 0 && rope_ == nullptr && !layer.k_mean.empty() && !keys_are_exact() &&
      is_packed()) {
    throw Error(ErrorCode::kInvalidArgument,
                "layer " + std::to_string(layer.layer) +
                    ": its key mean is from before RoPE, but no RoPE table was given");
  }

  if (!keys_are_exact()) {
    const auto& clip = layer.k_clip[clip_index(k_layout_.quant.bits)];
    check_size(clip, heads, "k_clip", layer.layer);
    k_clip_ = clip.empty() ? std::vector<float>(heads, 1.0f) : clip;
    if (!layer.k_transform.empty() && !is_identity(layer.k_transform, heads, layer.head_dim_k)) {
      k_transform_ = layer.k_transform;
      query_transform_ = layer.k_transform_inverse_transposed;
    }
    // A method with coders of its own keeps the mean for them.
    if (is_packed() && !is_zero(layer.k_mean)) k_mean_ = layer.k_mean;
    if (!k_mean_.empty() && rope_ != nullptr)
      rope_basis_ = std::make_shared<RopeBasis>(rope_->spec());
  }
  if (!values_are_exact()) {
    const auto& clip = layer.v_clip[clip_index(v_layout_.quant.bits)];
    check_size(clip, heads, "v_clip", layer.layer);
    v_clip_ = clip.empty() ? std::vector<float>(heads, 1.0f) : clip;
    if (!layer.v_transform.empty() && !is_identity(layer.v_transform, heads, layer.head_dim_v)) {
      v_transform_ = layer.v_transform;
      output_transform_ = layer.v_inverse.empty()
                              ? transposed(layer.v_transform, heads, layer.head_dim_v)
                              : layer.v_inverse;
    }
    if (is_packed() && !is_zero(layer.v_mean)) v_mean_ = layer.v_mean;
  }
}

bool LayerCodec::encode_block(const Side& side, const Rows& rows, const std::int32_t* positions,
                              const std::int64_t* slots, const PlaneView& dst,
                              std::int64_t first_token, int kv_head) const {
  const int dim = side.layout.head_dim;
  const int count =
      static_cast<int>(std::min<std::int64_t>(kBlockTokens, rows.num_tokens - first_token));
  const float* const src = rows.data + first_token * rows.token_stride + kv_head * rows.head_stride;
  const float* const mean = row_of(side.mean, kv_head, dim);
  slots += first_token;

  if (side.layout.quant.bits == 16) {
    bool finite = true;
    for (int i = 0; i < count; ++i) {
      if (slots[i] < 0) continue;
      std::uint8_t* const plane = dst.plane(slots[i] / kPageSize, kv_head);
      finite &= store_exact_row(
          src + i * rows.token_stride, dim,
          reinterpret_cast<bf16_t*>(plane + slots[i] % kPageSize * side.layout.code_row_bytes()));
    }
    return finite;
  }

  alignas(64) std::array<float, std::size_t{kBlockTokens} * kMaxHeadDim> centred;
  alignas(64) std::array<float, std::size_t{kBlockTokens} * kMaxHeadDim> rotated;
  alignas(64) std::array<float, kMaxHeadDim> mean_here;
  std::array<std::uint8_t*, kBlockTokens> planes;
  std::array<std::int32_t, kBlockTokens> token_in_page;
  for (int i = 0; i < count; ++i) {
    planes[i] = slots[i] < 0 ? nullptr : dst.plane(slots[i] / kPageSize, kv_head);
    token_in_page[i] = slots[i] < 0 ? 0 : static_cast<std::int32_t>(slots[i] % kPageSize);
    float* const row = centred.data() + i * dim;
    if (slots[i] < 0) {
      std::fill_n(row, dim, 0.0f);
      continue;
    }
    std::memcpy(row, src + i * rows.token_stride, sizeof(float) * dim);
    if (mean == nullptr) continue;
    const float* offset = mean;
    if (side.rope != nullptr) {
      std::memcpy(mean_here.data(), mean, sizeof(float) * dim);
      side.rope->rotate(mean_here.data(), positions[first_token + i]);
      offset = mean_here.data();
    }
    for (int d = 0; d < dim; ++d) row[d] -= offset[d];
  }
  const float* y = centred.data();
  if (const float* matrix = matrix_of(side.transform, kv_head, dim); matrix != nullptr) {
    kernels_->transform_rows({.x = centred.data(),
                              .matrix = matrix,
                              .y = rotated.data(),
                              .num_rows = count,
                              .x_stride = dim,
                              .y_stride = dim,
                              .head_dim = dim});
    y = rotated.data();
  }
  return kernels_->encode_rows({.y = y,
                                .planes = planes.data(),
                                .token_in_page = token_in_page.data(),
                                .num_rows = count,
                                .y_stride = dim,
                                .layout = side.layout,
                                .clip_ratio = side.clip[kv_head]});
}

bool LayerCodec::encode(const Side& side, const Rows& rows, const std::int32_t* positions,
                        const std::int64_t* slots, const PlaneView& dst, int num_threads) const {
  const std::int64_t num_blocks = (rows.num_tokens + kBlockTokens - 1) / kBlockTokens;
  std::atomic<bool> finite{true};
  const auto body = [&](std::int64_t task, int) {
    const std::int64_t first_token = task / num_kv_heads_ * kBlockTokens;
    const int kv_head = static_cast<int>(task % num_kv_heads_);
    if (!encode_block(side, rows, positions, slots, dst, first_token, kv_head)) {
      finite.store(false, std::memory_order_relaxed);
    }
  };
  parallel_for(num_threads, num_blocks * num_kv_heads_, std::cref(body));
  return finite.load(std::memory_order_relaxed);
}

bool LayerCodec::encode_keys(const Rows& keys, const std::int32_t* positions,
                             const std::int64_t* slots, const PlaneView& dst,
                             int num_threads) const {
  return encode({k_layout_, k_transform_, k_mean_, k_clip_, rope_.get()}, keys, positions, slots,
                dst, num_threads);
}

bool LayerCodec::encode_values(const Rows& values, const std::int64_t* slots, const PlaneView& dst,
                               int num_threads) const {
  return encode({v_layout_, v_transform_, v_mean_, v_clip_, nullptr}, values, nullptr, slots, dst,
                num_threads);
}

void LayerCodec::decode_rotated(const PlaneLayout& layout, const PlaneView& src, std::int64_t slot,
                                int kv_head, float* row) const {
  kernels_->decode_rows({.plane = src.plane(slot / kPageSize, kv_head),
                         .rows = row,
                         .row_stride = layout.head_dim,
                         .first = static_cast<int>(slot % kPageSize),
                         .num_tokens = 1,
                         .layout = layout});
}

void LayerCodec::decode_key(std::int64_t slot, std::int32_t position, const PlaneView& src,
                            float* rows) const {
  const int dim = k_layout_.head_dim;
  std::array<float, kMaxHeadDim> rotated, offset;
  for (int head = 0; head < num_kv_heads_; ++head) {
    float* const row = rows + std::int64_t{head} * dim;
    decode_rotated(k_layout_, src, slot, head, rotated.data());
    // k̂ = k̃ · R_K⁻¹, and R_K⁻¹ is the transpose of the query transform.
    const float* const matrix = query_transform(head);
    for (int i = 0; i < dim; ++i) {
      row[i] = static_cast<float>(
          matrix == nullptr ? rotated[i]
                            : dot(rotated.data(), matrix + std::int64_t{i} * dim, 1, dim));
    }
    if (const float* mean = key_mean(head); mean != nullptr) {
      std::memcpy(offset.data(), mean, sizeof(float) * dim);
      if (rope_ != nullptr) rope_->rotate(offset.data(), position);
      for (int i = 0; i < dim; ++i) row[i] += offset[i];
    }
  }
}

void LayerCodec::decode_value(std::int64_t slot, const PlaneView& src, float* rows) const {
  const int dim = v_layout_.head_dim;
  std::array<float, kMaxHeadDim> rotated;
  for (int head = 0; head < num_kv_heads_; ++head) {
    float* const row = rows + std::int64_t{head} * dim;
    decode_rotated(v_layout_, src, slot, head, rotated.data());
    const float* const matrix = output_transform(head);
    const float* const mean = value_mean(head);
    for (int j = 0; j < dim; ++j) {
      const double raw = matrix == nullptr ? rotated[j] : dot(rotated.data(), matrix + j, dim, dim);
      row[j] = static_cast<float>(raw + (mean != nullptr ? mean[j] : 0.0f));
    }
  }
}

const float* LayerCodec::query_transform(int kv_head) const {
  return matrix_of(query_transform_.empty() ? k_transform_ : query_transform_, kv_head,
                   k_layout_.head_dim);
}
const float* LayerCodec::output_transform(int kv_head) const {
  return matrix_of(output_transform_, kv_head, v_layout_.head_dim);
}
const float* LayerCodec::key_mean(int kv_head) const {
  return row_of(k_mean_, kv_head, k_layout_.head_dim);
}
const float* LayerCodec::value_mean(int kv_head) const {
  return row_of(v_mean_, kv_head, v_layout_.head_dim);
}

}  // namespace oscar::cache
