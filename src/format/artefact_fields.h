// The tensors of one layer of an artefact, listed once: writing, reading and checking walk this
// list. Internal to format.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "format/artefact.h"

namespace oscar {

struct LayerField {
  enum class Kind { kMatrix, kRow, kHead };  // per KV head: [d][d], [d], one value
  std::string name;                          // "k_transform"
  Kind kind;
  int head_dim;
  bool required;  // false: empty means none

  std::vector<std::uint64_t> shape(int num_kv_heads) const {
    const auto heads = static_cast<std::uint64_t>(num_kv_heads);
    const auto dim = static_cast<std::uint64_t>(head_dim);
    switch (kind) {
      case Kind::kMatrix: return {heads, dim, dim};
      case Kind::kRow: return {heads, dim};
      case Kind::kHead: return {heads};
    }
    return {};
  }
  std::uint64_t values_per_head() const {
    const auto dim = static_cast<std::uint64_t>(head_dim);
    return kind == Kind::kMatrix ? dim * dim : kind == Kind::kRow ? dim : 1;
  }
};

// Calls visit(field, values) for each tensor; Layer is ArtefactLayer or const ArtefactLayer.
template <typename Layer, typename Visit>
void visit_layer_fields(Layer& layer, Visit&& visit) {
  using Kind = LayerField::Kind;
  const int k = layer.head_dim_k, v = layer.head_dim_v;
  visit(LayerField{"k_transform", Kind::kMatrix, k, true}, layer.k_transform);
  visit(LayerField{"k_transform_inverse_transposed", Kind::kMatrix, k, false},
        layer.k_transform_inverse_transposed);
  visit(LayerField{"v_transform", Kind::kMatrix, v, true}, layer.v_transform);
  visit(LayerField{"v_inverse", Kind::kMatrix, v, false}, layer.v_inverse);
  visit(LayerField{"k_mean", Kind::kRow, k, false}, layer.k_mean);
  visit(LayerField{"v_mean", Kind::kRow, v, false}, layer.v_mean);
  for (int i = 0; i < kNumClipBits; ++i) {
    const std::string bits = std::to_string(i - clip_index(0));
    visit(LayerField{"k_clip." + bits, Kind::kHead, k, false}, layer.k_clip[i]);
    visit(LayerField{"v_clip." + bits, Kind::kHead, v, false}, layer.v_clip[i]);
  }
  visit(LayerField{"k_spectrum", Kind::kRow, k, false}, layer.k_spectrum);
  visit(LayerField{"v_spectrum", Kind::kRow, v, false}, layer.v_spectrum);
}

inline std::string layer_tensor_name(int layer, const std::string& field) {
  return "layers." + std::to_string(layer) + "." + field;
}

inline std::string rope_tensor_name(std::size_t rope) {
  return "ropes." + std::to_string(rope) + ".inv_freq";
}

inline constexpr const char* kErrorsTensor = "errors";  // [num_layers][2]: k_error, v_error
// [num_layers][2][kNumClipBits]: k_losses, v_losses; absent: not measured
inline constexpr const char* kLossesTensor = "bit_losses";

}  // namespace oscar
