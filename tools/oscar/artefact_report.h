// What an artefact holds, for people and as JSON.
#pragma once

#include "format/artefact.h"
#include "support.h"

namespace oscar::tool {

// One line a layer: spectra, clips, errors, averaged over its KV heads.
void print_layers(const Artefact& artefact);
void print_artefact(const Artefact& artefact);
Json artefact_json(const Artefact& artefact);

}  // namespace oscar::tool
