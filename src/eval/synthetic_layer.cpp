#include "eval/synthetic_layer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/bf16.h"
#include "base/error.h"
#include "base/text.h"
#include "calibrate/methods.h"
#include "methods/definition.h"
#include "reference/attention.h"

namespace oscar::eval {
namespace {

using Generator = std::mt19937_64;

constexpr double kRopeBase = 1e6;

std::vector<float> gaussian(std::int64_t count, float deviation, Generator* generator) {
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(*generator);
  return values;
}

RopeSpec half_split_rope(int head_dim) {
  RopeSpec rope;
  for (int i = 0; i < head_dim / 2; ++i) {
    rope.inv_freq.push_back(static_cast<float>(std::pow(kRopeBase, -2.0 * i / head_dim)));
  }
  return rope;
}

}  // namespace

SyntheticLayer::SyntheticLayer(const KvSpec& spec, const SyntheticShape& shape,
                               const kernels::KernelSet& kernels, std::uint64_t seed)
    : shape_(shape) {
  make_codec(spec, kernels, seed);
  Generator generator(seed + 1);
  const std::int64_t row = std::int64_t{shape.num_kv_heads} * shape.head_dim;
  keys_ = gaussian(shape.num_tokens * row, 1.0f, &generator);
  values_ = gaussian(shape.num_tokens * row, 1.0f, &generator);
  queries_ = gaussian(shape.num_queries * shape.num_q_heads * shape.head_dim, 1.5f, &generator);
  out_.assign(queries_.size(), 0.0f);
  positions_.resize(static_cast<std::size_t>(shape.num_tokens));
  std::iota(positions_.begin(), positions_.end(), 0);
  slots_.assign(positions_.begin(), positions_.end());
  const std::int64_t num_pages = (shape.num_tokens + kPageSize - 1) / kPageSize;
  const auto view = [&](const PlaneLayout& layout, AlignedBuffer<std::uint8_t>* bytes) {
    *bytes = AlignedBuffer<std::uint8_t>(
        static_cast<std::uint64_t>(num_pages * shape.num_kv_heads * layout.plane_bytes()));
    return PlaneView{bytes->data(), shape.num_kv_heads * layout.plane_bytes(), layout.plane_bytes(),
                     layout};
  };
  params_.kv.k = view(codec_->k_layout(), &k_bytes_);
  params_.kv.v = view(codec_->v_layout(), &v_bytes_);
  encode(1);
  make_copies(spec);
  params_.q = queries_.data();
  params_.q_query_stride = std::int64_t{shape.num_q_heads} * shape.head_dim;
  params_.q_head_stride = shape.head_dim;
  params_.out = out_.data();
  params_.out_query_stride = params_.q_query_stride;
  params_.out_head_stride = shape.head_dim;
  params_.query_positions = positions_.data() + (shape.num_tokens - shape.num_queries);
  params_.kv.cell_positions = positions_.data();
  params_.codec = codec_.get();
  params_.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  params_.causal = true;
  params_.float_path = spec.force_float;
}

void SyntheticLayer::make_codec(const KvSpec& spec, const kernels::KernelSet& kernels,
                                std::uint64_t seed) {
  if (spec.kind != KvSpec::Kind::kMethod) {
    throw Error(ErrorCode::kInvalidArgument,
                "'" + spec.text + "': give a method: " + method_names());
  }
  const calibrate::LayerShape layer_shape{shape_.num_q_heads, shape_.num_kv_heads, shape_.head_dim,
                                          shape_.head_dim};
  const methods::Definition& definition = methods::definition(spec.method);
  if (!definition.packed()) {
    throw Error(ErrorCode::kInvalidArgument,
                in_quotes(spec.text) +
                    ": its codes are in a layout of their own, which has no kernels to time");
  }
  Artefact artefact = calibrate::make_uncalibrated(spec.method, {}, {{0, layer_shape}});
  ArtefactLayer& layer = artefact.layers.front();
  if (definition.calibrated) {
    const std::vector<float> clip(static_cast<std::size_t>(shape_.num_kv_heads), 0.9f);
    layer.k_clip.fill(clip);
    layer.v_clip.fill(clip);
  }
  if (definition.recipe.subtract_key_mean) {
    Generator generator(seed);
    artefact.ropes.push_back(half_split_rope(shape_.head_dim));
    layer.rope = 0;
    layer.k_mean = gaussian(std::int64_t{shape_.num_kv_heads} * shape_.head_dim, 1.0f, &generator);
  }
  calibrate::apply_kv_spec(spec, &artefact);
  std::shared_ptr<const RopeTable> table;
  if (layer.rope >= 0) {
    table = std::make_shared<const RopeTable>(artefact.ropes.front(),
                                              static_cast<std::int32_t>(shape_.num_tokens));
  }
  codec_ = std::make_unique<cache::LayerCodec>(artefact, layer, std::move(table), kernels);
}

void SyntheticLayer::encode(int num_threads) {
  const std::int64_t row = std::int64_t{shape_.num_kv_heads} * shape_.head_dim;
  codec_->encode_keys({keys_.data(), shape_.num_tokens, row, shape_.head_dim}, positions_.data(),
                      slots_.data(), params_.kv.k, num_threads);
  codec_->encode_values({values_.data(), shape_.num_tokens, row, shape_.head_dim}, slots_.data(),
                        params_.kv.v, num_threads);
}

void SyntheticLayer::make_copies(const KvSpec& spec) {
  if (codec_->keys_are_exact() && codec_->values_are_exact()) return;
  copy_slots_.assign(static_cast<std::size_t>(shape_.num_tokens), -1);
  const std::int64_t row = std::int64_t{shape_.num_kv_heads} * shape_.head_dim;
  const std::int64_t first_recent = shape_.num_tokens - shape_.num_queries + 1 - spec.recent_tokens;
  std::int32_t copies = 0;
  for (std::int64_t token = 0; token < shape_.num_tokens; ++token) {
    if (token >= spec.sink_tokens && token < first_recent) continue;
    copy_slots_[static_cast<std::size_t>(token)] = copies++;
    const auto append = [&](const std::vector<float>& rows, std::vector<bf16_t>* out) {
      std::transform(rows.begin() + token * row, rows.begin() + (token + 1) * row,
                     std::back_inserter(*out), bf16_from_float);
    };
    append(keys_, &k_copies_);
    append(values_, &v_copies_);
  }
  params_.kv.copy_slots = copy_slots_.data();
  params_.kv.k_copies = k_copies_.data();
  params_.kv.v_copies = v_copies_.data();
  params_.sink_tokens = spec.sink_tokens;
  params_.recent_tokens = spec.recent_tokens;
  params_.float_path = spec.force_float;
}

attention::Shape SyntheticLayer::attention_shape() const {
  attention::Shape shape;
  shape.num_queries = shape_.num_queries;
  shape.num_kv = shape_.num_tokens;
  shape.num_q_heads = shape_.num_q_heads;
  shape.num_kv_heads = shape_.num_kv_heads;
  shape.head_dim_k = shape.head_dim_v = shape_.head_dim;
  return shape;
}

std::uint64_t SyntheticLayer::coded_bytes() const {
  return static_cast<std::uint64_t>(
      shape_.num_tokens * shape_.num_kv_heads *
      (codec_->k_layout().plane_bytes() + codec_->v_layout().plane_bytes()) / kPageSize);
}

std::vector<double> SyntheticLayer::reference() const {
  const int dim = shape_.head_dim;
  const std::int64_t row = std::int64_t{shape_.num_kv_heads} * dim;
  const std::int64_t query = shape_.num_tokens - 1;
  std::vector<std::vector<reference::Token>> tokens(static_cast<std::size_t>(shape_.num_kv_heads));
  std::vector<float> key(static_cast<std::size_t>(row)), value(key);
  for (std::int64_t token = 0; token < shape_.num_tokens; ++token) {
    const std::int32_t slot = copy_slots_.empty() ? -1 : copy_slots_[token];
    const bool exact =
        slot >= 0 && (token < params_.sink_tokens || query - token < params_.recent_tokens);
    if (exact) {
      std::transform(k_copies_.begin() + slot * row, k_copies_.begin() + (slot + 1) * row,
                     key.begin(), bf16_to_float);
      std::transform(v_copies_.begin() + slot * row, v_copies_.begin() + (slot + 1) * row,
                     value.begin(), bf16_to_float);
    } else {
      codec_->decode_key(token, static_cast<std::int32_t>(token), params_.kv.k, key.data());
      codec_->decode_value(token, params_.kv.v, value.data());
    }
    for (int head = 0; head < shape_.num_kv_heads; ++head) {
      tokens[head].push_back({{key.begin() + head * dim, key.begin() + (head + 1) * dim},
                              {value.begin() + head * dim, value.begin() + (head + 1) * dim},
                              token});
    }
  }
  std::vector<double> result;
  const float* last = queries_.data() + (shape_.num_queries - 1) * params_.q_query_stride;
  for (int head = 0; head < shape_.num_q_heads; ++head) {
    const std::vector<double> q(last + head * dim, last + (head + 1) * dim);
    const int kv_head = head / (shape_.num_q_heads / shape_.num_kv_heads);
    reference::AttentionOptions options;
    options.scale = static_cast<double>(params_.scale);
    const std::vector<double> out =
        reference::attend(q, query, tokens[kv_head], static_cast<std::size_t>(dim), options).out;
    result.insert(result.end(), out.begin(), out.end());
  }
  return result;
}

}  // namespace oscar::eval
