// A short fingerprint of what decodes a layer's codes, for saved states.
#pragma once

#include <cstdint>

#include "format/artefact.h"

namespace oscar::ggml_plugin {

// Method, transforms, means and the rotation of the means.
std::uint32_t hash_transforms(const Artefact& artefact, const ArtefactLayer& layer);

}  // namespace oscar::ggml_plugin
