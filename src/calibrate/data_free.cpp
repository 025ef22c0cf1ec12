// naive and quarot: transforms that need the shapes of a model and nothing else.
#include <algorithm>
#include <string>

#include "base/error.h"
#include "calibrate/group_size.h"
#include "calibrate/methods.h"
#include "format/plane_layout.h"

namespace oscar::calibrate {
namespace {

std::vector<float> identity(int head_dim) {
  std::vector<float> matrix(static_cast<std::size_t>(head_dim) * head_dim, 0.0f);
  for (int i = 0; i < head_dim; ++i) matrix[static_cast<std::size_t>(i) * (head_dim + 1)] = 1.0f;
  return matrix;
}

// The same matrix for every KV head: [num_kv_heads][head_dim][head_dim].
std::vector<float> for_all_heads(Method method, int num_kv_heads, int head_dim) {
  const std::vector<float> one =
      method == Method::kQuarot ? hadamard_times_p(head_dim) : identity(head_dim);
  std::vector<float> all;
  all.reserve(one.size() * static_cast<std::size_t>(num_kv_heads));
  for (int head = 0; head < num_kv_heads; ++head) all.insert(all.end(), one.begin(), one.end());
  return all;
}

}  // namespace

Artefact make_data_free(Method method, const ModelFingerprint& model,
                        const std::vector<LayerIndexShape>& layers) {
  if (method != Method::kNaive && method != Method::kQuarot) {
    throw Error(ErrorCode::kInvalidArgument, std::string("method ") + method_name(method) +
                                                 " needs calibration; without it: naive, quarot");
  }
  if (layers.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "no attention layers given; at least one is needed");
  }
  Artefact artefact;
  artefact.method = method;
  artefact.model = model;
  artefact.hadamard = method == Method::kQuarot;
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
  artefact.k_quant.group_size = common_group_size(k_dims, kDefaultGroupSize);
  artefact.v_quant.group_size = common_group_size(v_dims, kDefaultGroupSize);
  for (const auto& [layer, shape] : layers) {
    PlaneLayout{shape.head_dim_k, artefact.k_quant}.validate();
    PlaneLayout{shape.head_dim_v, artefact.v_quant}.validate();
    ArtefactLayer fitted;
    fitted.layer = layer;
    fitted.num_kv_heads = shape.num_kv_heads;
    fitted.head_dim_k = shape.head_dim_k;
    fitted.head_dim_v = shape.head_dim_v;
    fitted.k_transform = for_all_heads(method, shape.num_kv_heads, shape.head_dim_k);
    fitted.v_transform = for_all_heads(method, shape.num_kv_heads, shape.head_dim_v);
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
  return artefact;
}

}  // namespace oscar::calibrate
