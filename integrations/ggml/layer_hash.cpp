#include "layer_hash.h"

#include <string>
#include <vector>

#include "base/hash.h"

namespace oscar::ggml_plugin {

std::uint32_t hash_transforms(const Artefact& artefact, const ArtefactLayer& layer) {
  Hasher hasher;
  const auto add = [&hasher](const std::vector<float>& values) {
    const std::uint64_t size = values.size();
    hasher.update(&size, sizeof size);
    hasher.update(values.data(), size * sizeof(float));
  };
  const std::string method = method_name(artefact.method);
  hasher.update(method.data(), method.size());
  for (const auto* values : {&layer.k_transform, &layer.k_transform_inverse_transposed,
                             &layer.v_transform, &layer.v_inverse, &layer.k_mean, &layer.v_mean}) {
    add(*values);
  }
  if (layer.rope >= 0 && !layer.k_mean.empty()) add(artefact.ropes[layer.rope].inv_freq);
  return static_cast<std::uint32_t>(std::stoul(hasher.hex().substr(0, 8), nullptr, 16));
}

}  // namespace oscar::ggml_plugin
