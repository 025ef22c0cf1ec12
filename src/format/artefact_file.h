// An artefact as the tensors and metadata of its file, for who makes or shows one piece by piece
// (the C interface).
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "format/artefact.h"
#include "format/safetensors.h"

namespace oscar {

// Views into an artefact and into what is derived from it (`derived`); the artefact must outlive
// it.
struct ArtefactFile {
  Safetensors file;
  std::deque<std::vector<float>> derived;  // what the views point into must not move
};

// What save_artefact writes. Checks the artefact as saving does.
ArtefactFile artefact_file(const Artefact& artefact, const std::string& name);

// The artefact that the tensors and metadata stand for, checked as loading does. The probes
// (artefact_probe.h) must not be among the tensors, nor the content hash in the metadata: whoever
// builds an artefact has none yet.
Artefact artefact_from_tensors(const Safetensors& file, const std::string& name);

}  // namespace oscar
