// The string metadata of an artefact's file: everything but tensors. Internal to format.
#pragma once

#include <map>
#include <string>

#include "format/artefact.h"

namespace oscar {

using Metadata = std::map<std::string, std::string>;

Metadata artefact_metadata(const Artefact& artefact);

// An artefact without its tensors: layers have their index, rope and sizes; ropes have no
// frequencies yet. `num_tensors` of the file bounds the number of layers. Throws Error(kCorrupt |
// kUnsupported) naming the entry, its value, what would be right.
Artefact parse_artefact_metadata(const Metadata& metadata, std::size_t num_tensors,
                                 const std::string& name);

}  // namespace oscar
