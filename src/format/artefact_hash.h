// What an artefact says of its own bytes, so that damage is found wherever it is.
#pragma once

#include <string>

#include "format/safetensors.h"

namespace oscar {

inline constexpr const char* kContentHash = "content_hash";  // metadata key

// XXH3-128 over all metadata but the hash itself and over all tensors, in the order of their names,
// each part followed by a zero byte: key, value; then name, dtype, shape, bytes. It does not depend
// on the order in which a file stores them.
std::string content_hash(const Safetensors& file);

// Throws Error(kCorrupt) when the file has a content hash and it is not that of its content. A file
// without one, written by hand, passes.
void check_content_hash(const Safetensors& file, const std::string& name);

}  // namespace oscar
