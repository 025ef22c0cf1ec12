#include <deque>

#include "format/artefact.h"
#include "format/artefact_check.h"
#include "format/artefact_fields.h"
#include "format/artefact_metadata.h"
#include "format/artefact_probe.h"
#include "format/safetensors.h"

namespace oscar {
namespace {

TensorView view_of(const std::vector<float>& values, std::vector<std::uint64_t> shape) {
  return {DType::kF32,
          std::move(shape),
          {reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * sizeof(float)}};
}

}  // namespace

void save_artefact(const Artefact& artefact, const std::string& path) {
  check_artefact(artefact, path);
  Safetensors file;
  file.metadata = artefact_metadata(artefact);
  for (std::size_t r = 0; r < artefact.ropes.size(); ++r) {
    const std::vector<float>& inv_freq = artefact.ropes[r].inv_freq;
    file.tensors[rope_tensor_name(r)] = view_of(inv_freq, {inv_freq.size()});
  }
  std::deque<std::vector<float>> probes;  // what the views point into must not move
  std::vector<float> errors;
  for (const ArtefactLayer& layer : artefact.layers) {
    visit_layer_fields(layer, [&](const LayerField& field, const std::vector<float>& values) {
      if (values.empty()) return;
      file.tensors[layer_tensor_name(layer.layer, field.name)] =
          view_of(values, field.shape(layer.num_kv_heads));
    });
    for (const Side side : {Side::kKey, Side::kValue}) {
      const int dim = side == Side::kKey ? layer.head_dim_k : layer.head_dim_v;
      probes.push_back(probe_outputs(layer, side));
      file.tensors[layer_tensor_name(layer.layer, std::string(side_name(side)) + "_probe")] =
          view_of(probes.back(), {static_cast<std::uint64_t>(layer.num_kv_heads),
                                  static_cast<std::uint64_t>(dim)});
    }
    errors.insert(errors.end(), {layer.k_error, layer.v_error});
  }
  file.tensors[kErrorsTensor] = view_of(errors, {artefact.layers.size(), 2});
  write_safetensors(file, path);
}

}  // namespace oscar
