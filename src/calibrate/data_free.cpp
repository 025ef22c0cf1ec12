// Methods that need the shapes of a model and nothing else.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "calibrate/group_size.h"
#include "calibrate/methods.h"
#include "format/plane_layout.h"
#include "methods/definition.h"

namespace oscar::calibrate {
namespace {

std::vector<float> identity(int head_dim) {
  std::vector<float> matrix(static_cast<std::size_t>(head_dim) * head_dim, 0.0f);
  for (int i = 0; i < head_dim; ++i) matrix[static_cast<std::size_t>(i) * (head_dim + 1)] = 1.0f;
  return matrix;
}

// The same matrix for every KV head: [num_kv_heads][head_dim][head_dim].
std::vector<float> for_all_heads(methods::MakeRotation rotation, int num_kv_heads, int head_dim) {
  const std::vector<float> one = rotation != nullptr ? rotation(head_dim) : identity(head_dim);
  std::vector<float> all;
  all.reserve(one.size() * static_cast<std::size_t>(num_kv_heads));
  for (int head = 0; head < num_kv_heads; ++head) all.insert(all.end(), one.begin(), one.end());
  return all;
}

std::string names_where(bool calibrated) {
  std::string names;
  for (const Method method : all_methods()) {
    if (methods::definition(method).calibrated != calibrated) continue;
    names += (names.empty() ? "" : ", ") + std::string(method_name(method));
  }
  return names;
}

}  // namespace

bool needs_statistics(Method method) { return methods::definition(method).calibrated; }
std::string calibrated_method_names() { return names_where(true); }
std::string data_free_method_names() { return names_where(false); }

Artefact make_data_free(Method method, const ModelFingerprint& model,
                        const std::vector<LayerIndexShape>& layers) {
  if (needs_statistics(method)) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("method ") + method_name(method) +
                    " needs calibration; without it: " + data_free_method_names());
  }
  return make_uncalibrated(method, model, layers);
}

Artefact make_uncalibrated(Method method, const ModelFingerprint& model,
                           const std::vector<LayerIndexShape>& layers) {
  const methods::Definition& definition = methods::definition(method);
  if (layers.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "no attention layers given; at least one is needed");
  }
  Artefact artefact;
  artefact.method = method;
  artefact.model = model;
  artefact.hadamard = definition.hadamard;
  std::vector<int> k_dims, v_dims;
  for (const auto& [layer, shape] : layers) {
    if (shape.num_kv_heads < 1) {
      throw Error(ErrorCode::kInvalidArgument, "layer " + std::to_string(layer) + " has " +
                                                   std::to_string(shape.num_kv_heads) +
                                                   " KV heads; legal: 1 and above");
    }
    k_dims.push_back(shape.head_dim_k);
    v_dims.push_back(shape.head_dim_v);
  }
  const DefaultQuants quants = default_quants(method, k_dims, v_dims);
  artefact.k_quant = quants.k;
  artefact.v_quant = quants.v;
  for (const auto& [layer, shape] : layers) {
    for (const int head_dim : {shape.head_dim_k, shape.head_dim_v}) {
      PlaneLayout{head_dim, {.group_size = kGroupMultiple}}.validate();
    }
    ArtefactLayer fitted;
    fitted.layer = layer;
    fitted.num_kv_heads = shape.num_kv_heads;
    fitted.head_dim_k = shape.head_dim_k;
    fitted.head_dim_v = shape.head_dim_v;
    fitted.k_transform = for_all_heads(definition.k_rotation, shape.num_kv_heads, shape.head_dim_k);
    fitted.v_transform = for_all_heads(definition.v_rotation, shape.num_kv_heads, shape.head_dim_v);
    for (int index = 0; index < kNumClipBits; ++index) {
      if (definition.clip[index] == 1.0f) continue;
      fitted.k_clip[index].assign(shape.num_kv_heads, definition.clip[index]);
      fitted.v_clip[index].assign(shape.num_kv_heads, definition.clip[index]);
    }
    artefact.layers.push_back(std::move(fitted));
  }
  const auto by_layer = [](const ArtefactLayer& a, const ArtefactLayer& b) {
    return a.layer < b.layer;
  };
  std::sort(artefact.layers.begin(), artefact.layers.end(), by_layer);
  for (std::size_t i = 1; i < artefact.layers.size(); ++i) {
    if (artefact.layers[i].layer == artefact.layers[i - 1].layer) {
      throw Error(ErrorCode::kInvalidArgument, "layer " + std::to_string(artefact.layers[i].layer) +
                                                   " is given twice; each layer once");
    }
  }
  methods::check(method, artefact);
  return artefact;
}

}  // namespace oscar::calibrate
