// What must hold in every artefact, whether it was just fitted or just read. Internal to format.
#pragma once

#include <string>

#include "format/artefact.h"

namespace oscar {

inline constexpr int kMaxLayers = 4096;
inline constexpr int kMaxHeads = 4096;  // query or KV

// Ranges and enums of the model and the quantizers; needs no layers. Throws Error(kCorrupt |
// kUnsupported).
void check_artefact_model(const Artefact& artefact, const std::string& name);

// The model and every value of every layer. Throws Error(kCorrupt | kUnsupported) naming layer,
// head, tensor, value, and what would be right.
void check_artefact(const Artefact& artefact, const std::string& name);

}  // namespace oscar
