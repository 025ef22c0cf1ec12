#include "format/artefact.h"
#include "format/artefact_check.h"
#include "format/artefact_fields.h"
#include "format/artefact_file.h"
#include "format/artefact_hash.h"
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

ArtefactFile artefact_file(const Artefact& artefact, const std::string& name) {
  check_artefact(artefact, name);
  ArtefactFile out;
  auto& tensors = out.file.tensors;
  out.file.metadata = artefact_metadata(artefact);
  for (std::size_t r = 0; r < artefact.ropes.size(); ++r) {
    const std::vector<float>& inv_freq = artefact.ropes[r].inv_freq;
    tensors[rope_tensor_name(r)] = view_of(inv_freq, {inv_freq.size()});
  }
  if (!artefact.layers.front().k_losses.empty()) {
    std::vector<float>& losses = out.derived.emplace_back();
    for (const ArtefactLayer& layer : artefact.layers) {
      for (const std::vector<float>* side : {&layer.k_losses, &layer.v_losses}) {
        losses.insert(losses.end(), side->begin(), side->end());
      }
    }
    tensors[kLossesTensor] = view_of(losses, {artefact.layers.size(), 2, kNumClipBits});
  }
  std::vector<float>& errors = out.derived.emplace_back();
  for (const ArtefactLayer& layer : artefact.layers) {
    visit_layer_fields(layer, [&](const LayerField& field, const std::vector<float>& values) {
      if (values.empty()) return;
      tensors[layer_tensor_name(layer.layer, field.name)] =
          view_of(values, field.shape(layer.num_kv_heads));
    });
    for (const Side side : {Side::kKey, Side::kValue}) {
      const int dim = side == Side::kKey ? layer.head_dim_k : layer.head_dim_v;
      const auto& probes = out.derived.emplace_back(probe_outputs(layer, side));
      tensors[layer_tensor_name(layer.layer, std::string(side_name(side)) + "_probe")] = view_of(
          probes,
          {static_cast<std::uint64_t>(layer.num_kv_heads), static_cast<std::uint64_t>(dim)});
    }
    errors.insert(errors.end(), {layer.k_error, layer.v_error});
  }
  tensors[kErrorsTensor] = view_of(errors, {artefact.layers.size(), 2});
  out.file.metadata[kContentHash] = content_hash(out.file);
  return out;
}

void save_artefact(const Artefact& artefact, const std::string& path) {
  write_safetensors(artefact_file(artefact, path).file, path);
}

std::string serialize_artefact(const Artefact& artefact, const std::string& name) {
  return serialize_safetensors(artefact_file(artefact, name).file);
}

}  // namespace oscar
